"""HAZARDS 11: stack pointers of different stacks are not compared, and an exception ends calls, when traced calls are shown."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile

import pytest
from built_library import build_library, built_library, needs_compilers
from isolation import isolated
from programs import load_c
from sampled import in_stress

from fprobe.calls.log import log_calls

pytestmark = needs_compilers

SOURCE = """
#include <signal.h>
#include <stdexcept>
#include <sys/mman.h>
#include <ucontext.h>

#define FUNCTION extern "C" __attribute__((noinline))
static volatile long seen;

FUNCTION int deep(int n) { if (n == 0) throw std::runtime_error("deep"); return deep(n - 1) + 1; }
FUNCTION int plain(int n) { seen++; return n * 3 + 1; }
FUNCTION int catcher(int n) { try { return deep(n); } catch (const std::runtime_error &) { return -n; } }
FUNCTION int catching(int n) { int r = catcher(n); return r + plain(n); }  /* probed, unlike catcher */
FUNCTION int catchings(int n) { int sum = 0; for (int i = 0; i < n; i++) sum += catcher(i); return sum; }

/* A handler on a stack of its own, above or below the thread's. */
static void on_signal(int number) { plain(number); }
FUNCTION int interrupted(int n) { raise(SIGUSR1); return plain(n); }
extern "C" int on_alternate_stack(int n)
{
    static char memory[1 << 16];
    stack_t stack = {memory, 0, sizeof memory}, old;
    struct sigaction action = {}, before;
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaltstack(&stack, &old);
    sigaction(SIGUSR1, &action, &before);
    int result = interrupted(n);
    sigaction(SIGUSR1, &before, 0);
    sigaltstack(&old, 0);
    return result;
}

/* Two coroutines: the first one's call returns while the second one's has not. */
static ucontext_t hub, first, second;
FUNCTION int paused(ucontext_t *own) { swapcontext(own, &hub); return plain(7); }
static void body(int number) { paused(number ? &second : &first); }
static void make(ucontext_t *context, int number, bool low)
{
    static char lower[1 << 16];
    getcontext(context);
    context->uc_stack.ss_sp = low ? lower : mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    context->uc_stack.ss_size = 1 << 16;
    context->uc_link = &hub;
    makecontext(context, (void (*)())body, 1, number);
}
/* The thread's own stack runs while a coroutine is suspended. */
FUNCTION int resumes(ucontext_t *own) { swapcontext(&hub, own); return 0; }
FUNCTION int alternating(int n)
{
    make(&first, 0, 1);
    resumes(&first), catching(0), resumes(&first);
    return plain(n);
}
FUNCTION int coroutines(int low_first)
{
    make(&first, 0, low_first), make(&second, 1, !low_first);
    swapcontext(&hub, &first), swapcontext(&hub, &second);
    swapcontext(&hub, &first), swapcontext(&hub, &second);
    return plain(1);
}
"""
PROBED = ("deep", "plain", "catching", "interrupted", "paused", "coroutines", "catchings", "resumes", "alternating")


def traced(call):
    """The entries and returns of the library's functions, with their depths."""
    library = built_library("libstacks", SOURCE, "-xc++")
    log = log_calls([f"libstacks:{name}" for name in PROBED])
    call(library)
    log.probe.detach()
    return [(str(event), event.depth) for event in log.events]


@isolated
def test_calls_that_an_exception_has_ended_are_around_no_other():
    events = traced(lambda library: [library.catching(n) for n in (0, 1, 1)] + [library.catcher(1), library.plain(1)])
    assert events == [
        *[("> catching", 0), ("> deep", 1), ("> plain", 1), ("< plain", 1), ("< catching", 0)],
        *[("> catching", 0), ("> deep", 1), ("> deep", 2), ("> plain", 1), ("< plain", 1), ("< catching", 0)] * 2,
        *[("> deep", 0), ("> deep", 1), ("> plain", 0), ("< plain", 0)],
    ]


@pytest.mark.stress
@isolated
def test_calls_that_end_by_exceptions_in_the_same_frame_follow_each_other():
    events = traced(lambda library: library.catchings(3))
    depths = [depth for text, depth in events if text == "> deep"]
    assert depths == [1, 1, 2, 1, 2, 3]


@isolated
def test_a_call_on_an_alternate_stack_is_inside_the_one_that_it_interrupts():
    events = traced(lambda library: library.on_alternate_stack(2))
    inner = [("> plain", 1), ("< plain", 1)]
    assert events == [("> interrupted", 0), *inner, *inner, ("< interrupted", 0)]


@pytest.mark.parametrize("low_first", [True, in_stress(False)])
@isolated
def test_calls_of_coroutines_end_in_any_order(low_first):
    events = traced(lambda library: library.coroutines(int(low_first)))
    names = [text for text, _ in events]
    plain = ["> plain", "< plain"]
    assert names == ["> coroutines", "> paused", "> paused", *[*plain, "< paused"] * 2, *plain, "< coroutines"]
    depths = [depth for text, depth in events if text.endswith("paused")]
    # Whether two slots elsewhere share a stack is not known: the lower one is taken to be inside.
    assert depths in ([1, 1, 1, 1], [1, 2, 1, 2], [2, 1, 2, 1]), depths
    assert events[-3:] == [("> plain", 1), ("< plain", 1), ("< coroutines", 0)]


@isolated
def test_calls_of_the_own_stack_are_not_inside_those_of_a_suspended_coroutine():
    events = traced(lambda library: library.alternating(3))
    inner = [("> deep", 2), ("> plain", 2), ("< plain", 2)]
    assert events == [
        *[("> alternating", 0), ("> resumes", 1), ("> paused", 2), ("< resumes", 1)],
        *[("> catching", 1), *inner, ("< catching", 1)],
        *[("> resumes", 1), ("> plain", 3), ("< plain", 3), ("< paused", 2), ("< resumes", 1)],
        *[("> plain", 1), ("< plain", 1), ("< alternating", 0)],
    ]


@pytest.mark.stress
def test_a_recorded_run_shows_the_same_depths(tmp_path):
    build_library(tmp_path / "libstacks.so", SOURCE, "-xc++")
    program = (
        f"import ctypes; each = ctypes.CDLL('{tmp_path}/libstacks.so'); each.catchings(3); each.on_alternate_stack(2)"
    )
    patterns = [part for name in PROBED for part in ("--trace", f"libstacks:{name}")]
    run = [sys.executable, "-m", "fprobe", "run", "-o", str(tmp_path / "report"), *patterns, "-c", program]
    subprocess.run(run, check=True, timeout=100, capture_output=True)
    lines = [
        line.partition("] |")[2] for line in (tmp_path / "report").read_text().splitlines() if "[libstacks]" in line
    ]
    begun = [
        (line.split()[0], (len(line) - len(line.lstrip())) // 2) for line in lines if not line.strip().startswith("}")
    ]
    assert begun == [
        *[("catchings", 0), *(("deep", depth) for depth in (1, 1, 2, 1, 2, 3))],
        *[("interrupted", 0), ("plain", 1), ("plain", 1)],
    ]


LEFT_BY_LONGJMP = r"""
#include <setjmp.h>
static jmp_buf back;
__attribute__((noipa)) int leaf(int n) { return n + 1; }
__attribute__((noipa)) int leaves(int n) { longjmp(back, 1); return n; }
__attribute__((noipa)) int around(int n) { return leaves(n) + 1; }
__attribute__((noipa)) int catches(int n) { return setjmp(back) ? leaf(n) : around(n); }
"""


@isolated
def test_recordings_of_the_graph_tracer_end_calls_that_a_longjmp_has_ended():
    """In trees, folded stacks, the columns of Parquet and Perfetto's slices."""
    from fprobe.export import calls
    from fprobe.export.recording import Recording
    from fprobe.export.trace_dat_reader import Trace
    from fprobe.tracefs import tracefs
    from ftrace.tracing.instances.trace_array import global_trace

    module = load_c(LEFT_BY_LONGJMP)
    tracefs.write("current_tracer", "function_graph")
    path = tempfile.mkdtemp() + "/trace.dat"
    recording = Recording(path, global_trace())
    module["catches"](1)
    recording.finish()
    tracefs.write("current_tracer", "nop")
    trace = Trace(path)
    lines = [line.partition("] | ")[2].split("(")[0] for line in calls.tree_lines(trace) if "] | " in line]
    assert lines == [
        *["catches", "  around", "    leaves", "  } /* around */ /* return not seen */", "  leaf", "} /* catches */"]
    ]
    folded = [line.rpartition(" ")[0].partition(";")[2] for line in calls.folded_lines(trace)]
    assert folded == ["catches", "catches;leaf"]
    if importlib.util.find_spec("pyarrow"):
        from pyarrow import parquet

        from fprobe.export.columns.trace_dat import convert

        convert(trace, f"{path}.parquet")
        rows = parquet.read_table(f"{path}.parquet").select(["function", "depth"]).to_pylist()
        assert {(row["function"], row["depth"]) for row in rows} == {
            ("catches", 0),
            ("around", 1),
            ("leaves", 2),
            ("leaf", 1),
        }
    definitions = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="no package perfetto")
    packets = definitions.Trace.FromString(calls.perfetto_trace(trace)).packet
    slices = [packet.track_event for packet in packets if packet.HasField("track_event")]
    begin = definitions.TrackEvent.TYPE_SLICE_BEGIN
    names = [each.name if each.type == begin else None for each in slices]
    assert names == ["catches", "around", "leaves", None, None, "leaf", None, None]
