"""HAZARDS 1, CFI: stack traces and unwinding from bodies and handlers, through stubs, trampolines and the guard."""

# ruff: noqa: E501, ARG005  (C is as wide as it is; the signature of a handler is given)

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from isolation import isolated
from programs import load_c
from sampled import sampled

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
needs_gdb = pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed")

BACKTRACES = r"""
#include <execinfo.h>
struct trace { long count; void *frames[60]; };
static struct trace traces[32];
static long used;
static void note(void) { struct trace *t = &traces[used++ & 31]; t->count = backtrace(t->frames, 60); }
__attribute__((noipa)) int on_entry(void *fp, unsigned long ip) { note(); return 0; }
__attribute__((noipa)) int on_exit_of(void *fp, unsigned long ip) { note(); return 0; }
__attribute__((noipa)) long leaf(long x) { note(); return x + 1; }
__attribute__((noipa)) long middle(long x) { return leaf(x) * 2; }
__attribute__((noipa)) long outer(long x) { return middle(x) + 1; }
struct trace *given(void) { return traces; }
"""


def _names(module, number):
    """The names in one of the traces that the program took, innermost first."""
    from sandbox import symbol_table

    class Trace(ctypes.Structure):
        _fields_ = [("count", ctypes.c_long), ("frames", ctypes.c_void_p * 60)]

    trace = Trace.from_address(module["given"]() + number * ctypes.sizeof(Trace))
    found = [symbol_table.locate(address) for address in trace.frames[: trace.count] if address]
    return [location.symbol.name for location in found if location]


@needs_cc
@isolated(shared=True)
def test_backtrace_reaches_the_outermost_caller_from_handlers_and_body():
    """RH-12, RH-18, RH-19: leaf's entry handler, its body, its exit handler."""
    import fprobe

    module = load_c(BACKTRACES)
    callers = ["middle", "outer", "sandbox_guard"]
    with fprobe.attach(["leaf", "middle", "outer"], entry=lambda *hit: 0, exit=lambda *hit: None):
        for kind in range(3):
            options = ({"entry": module["on_entry"]}, {}, {"exit": module["on_exit_of"]})[kind]
            with fprobe.attach("leaf", **(options or {"entry": lambda *hit: 0})):
                module["outer"](1)
    innermost = ["on_entry", "leaf", "leaf", "leaf", "on_exit_of"]
    for number, name in enumerate(innermost):
        names = _names(module, number)
        assert [name for name in names if name in callers] == callers, names
        assert name in names


@pytest.mark.parametrize("together", [False, True])
@isolated(shared=True)
def test_rh19_stack_traces_in_handlers_have_real_callers(together):
    """RH-18, RH-19: from an entry handler the function and its callers, from an exit handler the callers."""
    import stepped

    import fprobe
    import sandbox

    module = sandbox.load(stepped.IR, name="traced")
    traces = []

    def handler(fp, ip, ret, regs, data):
        traces.append([frame.name.partition("+")[0] for frame in fprobe.stack_trace()])
        if fprobe.stack_trace_save():
            assert fprobe.stack_trace_save(1) == [ret if regs.ip == ret else ip]

    names = ["leaf", "middle", "on_path"] if together else ["leaf"]
    with fprobe.attach(names, exit=handler) as exits:
        module["on_path"](1)
    assert traces[:2] == [["middle", "on_path"]] * 2
    traces.clear()
    with fprobe.attach(names, entry=handler, exit=lambda *hit: None) as entries:
        module["on_path"](1)
    assert traces[-2:] == [["leaf", "middle", "on_path"]] * 2
    assert exits.fp.errors.first is None and entries.fp.errors.first is None
    assert traces[0] == (["on_path"] if together else ["leaf", "middle", "on_path"])


@isolated(shared=True)
def test_rh10_tail_calls_a_stack_trace_has_the_real_caller_once():
    import stepped

    import fprobe
    import sandbox

    inner = stepped.TAIL.replace("@on_path", "@inner")
    module = sandbox.load(
        inner + "define i64 @outer(i64 %x) noinline { %r = call i64 @inner(i64 %x)  %s = add i64 %r, 1  ret i64 %s }\n",
        name="tails",
    )
    traces = []
    with fprobe.attach("*", exit=lambda *hit: traces.append([f.name.partition("+")[0] for f in fprobe.stack_trace()])):
        module["outer"](1)
    assert traces == [["outer"], ["outer"], ["outer"], []]


@isolated(shared=True)
def test_rh18_find_ret_addr_goes_on_from_where_it_was():
    import stepped

    import fprobe
    import sandbox

    module = sandbox.load(stepped.IR, name="found")
    answers = []

    def at_exit(fp, ip, ret, regs, data):
        slot = regs.sp - 8
        first = fprobe.rethook_find_ret_addr(slot)
        answers.append((first.address == ret, fprobe.rethook_find_ret_addr(slot, first.cur).address,
                        fprobe.rethook_find_ret_addr(slot + 8).address,
                        fprobe.is_rethook_trampoline(ctypes.c_uint64.from_address(slot).value),
                        fprobe.is_rethook_trampoline(ret)))  # fmt: skip

    with fprobe.attach("leaf", exit=at_exit) as probe:
        module["on_path"](1)
    assert probe.fp.errors.first is None
    assert answers == [(True, 0, 0, True, False)] * 2  # RB-5: the slot holds the stub until it returns


FORCED = r"""
#include <pthread.h>
static int destroyed, caught;
struct Noted { ~Noted() { __atomic_add_fetch(&destroyed, 1, __ATOMIC_SEQ_CST); } };
extern "C" {
__attribute__((noipa)) long ends(long x) { if (x == 0) pthread_exit((void *)7); return x; }
__attribute__((noipa)) long deep(long n, long x) { Noted noted; volatile long r = n ? deep(n - 1, x) : ends(x); return r; }
__attribute__((noipa)) void *run(void *depth) { Noted noted; return (void *)deep((long)depth, 0); }
__attribute__((noipa)) long threads(long n, long depth) {
    long sum = 0;
    for (long i = 0; i < n; i++) { pthread_t t; void *r; pthread_create(&t, 0, run, (void *)depth); pthread_join(t, &r); sum += (long)r; }
    return sum;
}
__attribute__((noipa)) long throws(long n) { Noted noted; if (n == 0) throw 5L; return throws(n - 1) + 1; }
__attribute__((noipa)) long catches(long n) { try { return throws(n); } catch (long x) { caught++; return x; } }
__attribute__((noipa)) long called(long (*f)(long), long n) { return f(n) + 1; }
long dead(void) { return destroyed; }
}
"""


@pytest.mark.parametrize("kind", sampled(["python", "native", "two"], 1))
@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
@isolated(shared=True)
def test_pthread_exit_and_throw_run_the_destructors_of_every_hooked_frame(kind):
    import tempfile

    from programs import assert_untouched

    import fprobe
    import sandbox

    path = Path(tempfile.mkdtemp()) / "forced.cpp"
    path.write_text(FORCED)
    module = sandbox.load(path)
    python = {"entry": lambda *hit: 0, "exit": lambda *hit: None}
    options = {"python": [python], "native": [{"action": fprobe.Stat()}], "two": [python, {"action": fprobe.Record()}]}
    names = ["ends", "deep", "run", "throws", "catches"]
    probes = [fprobe.attach(names, nr_maxactive=64, **given).attach() for given in options[kind]]
    assert module["threads"](20, 10) == 20 * 7
    assert module["dead"]() == 20 * 12
    assert [module["catches"](8) for _ in range(50)] == [5] * 50
    assert module["dead"]() == 20 * 12 + 50 * 9
    for probe in probes:
        assert probe.counts.missed == 0, probe.counts
        probe.detach()
    assert_untouched()


STEPPING = """
import gdb
gdb.execute("set pagination off")
gdb.execute("handle SIGUSR1 nostop noprint pass")
gdb.execute("handle SIGUSR2 stop print nopass")
gdb.execute("handle SIGURG stop print nopass")
gdb.execute("run")
over = []
gdb.events.stop.connect(lambda event: over.append(1) if getattr(event, "stop_signal", "") == "SIGURG" else None)
spans = [tuple(map(int, line.split("-"))) for line in open({spans!r}).read().split()]
lost, seen, steps = [], set(), 0
while not over and steps < 20000:
    frame = gdb.newest_frame()
    pc = frame.pc()
    if pc not in seen and any(start <= pc < end for start, end in spans):
        seen.add(pc)
        names = []
        while frame is not None and len(names) < 40:
            names.append(frame.name())
            frame = frame.older()
        if "call" not in names or "sandbox_guard" not in names:
            lost.append((hex(pc), names))
    gdb.execute("stepi", to_string=True)
    steps += 1
print("STEPPED", len(seen), "PLACES,", len(lost), "LOST", lost[:3])
gdb.execute("kill")
"""


@pytest.mark.stress
@needs_cc
@needs_gdb
@pytest.mark.parametrize("manner", ["both, a word", pytest.param("two probes", marks=pytest.mark.stress),
                                    pytest.param("registers", marks=pytest.mark.stress), pytest.param("mcount", marks=pytest.mark.stress)])  # fmt: skip
def test_gdb_walks_the_stack_from_every_instruction_of_a_hit(manner, tmp_path):
    """Stubs, trampolines, handlers and runtime, one instruction after the other."""
    script, spans = tmp_path / "stepping.py", tmp_path / "spans"
    script.write_text(STEPPING.format(spans=str(spans)))
    child = [sys.executable, str(Path(__file__).with_name("stepped.py")), manner, "1", str(spans)]
    command = ["gdb", "-q", "-nx", "-batch", "-ex", f"source {script}", "--args", *child]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL)
    told = [line for line in done.stdout.splitlines() if line.startswith("STEPPED")]
    if "Python scripting is not supported" in done.stderr:
        pytest.skip("this gdb has no Python")
    assert told, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(told[0].split()[1]) > 60 and " 0 LOST" in told[0], told
