"""The tracer function_graph (TE-9.2, TE-9.4) and the function profiler (TE-9.8)."""

from __future__ import annotations

import pytest
from isolation import isolated
from traced import CALLS, error_of, normalised, program, shown, tracing

OUTER = [
    "              |  outer() {",
    "              |    middle() {",
    "N us |      leaf();",
    "N us |      other();",
    "N us |      leaf();",
    "N us |    }",
    "N us |    leaf();",
    "N us |  }",
]


@isolated
def test_te9_2_calls_are_nested_and_leaves_are_one_line() -> None:
    from fprobe.tracefs import tracefs

    module = program()
    with tracing("function_graph"):
        module["outer"](1)
        assert shown() == OUTER and shown() == OUTER
        tracefs.write("trace_options", "funcgraph-tail")
        assert shown()[5] == "N us |    } /* middle */"
        tracefs.write("trace_options", "nofuncgraph-tail")
        tracefs.write("trace_options", "funcgraph-retval")
        assert shown()[2:6] == [
            "N us |      leaf(); /* = 0x2 */",
            "N us |      other(); /* = -22 */",
            "N us |      leaf(); /* = 0x2 */",
            "N us |    } /* middle = 0x3 */",
        ]
        tracefs.write("trace_options", "funcgraph-retval-hex")
        assert shown()[3] == "N us |      other(); /* = 0xffffffea */"
        for name in ("retval-hex", "retval"):
            tracefs.write("trace_options", f"nofuncgraph-{name}")
        tracefs.write("trace_options", "nocontext-info")
        assert tracefs.read("trace").splitlines()[:3] == ["# tracer: function_graph", "#", "outer [calls]() {"]
        tracefs.write("trace_options", "context-info")
        assert shown("trace_pipe") == OUTER and shown() == []


@isolated
def test_te9_2_results_of_a_library_function_that_a_detour_patches() -> None:
    """set_ftrace_filter does not name functions of libraries; an ftrace_ops that shares its hash can."""
    import ctypes

    import fprobe
    from fprobe.tracefs import tracefs
    from ftrace.core.ops import ftrace_ops, ftrace_ops_set_global_filter, ftrace_set_filter_ip

    libz = ctypes.CDLL("libz.so.1")
    address = ctypes.cast(libz.crc32_z, ctypes.c_void_p).value
    assert address
    sharing = ftrace_ops(lambda *_: None)
    ftrace_ops_set_global_filter(sharing)
    with fprobe.attach("libz:crc32_z", action=fprobe.Count()):
        ftrace_set_filter_ip(sharing, address)
    with tracing("function_graph"):
        tracefs.write("trace_options", "funcgraph-retval")
        results = [libz.crc32_z(0, b"some text", 9) for _ in range(3)]
        returned = [line for line in shown() if "crc32_z" in line]
    assert len(set(results)) == 1
    assert [int(line.rpartition("= ")[2].split()[0], 0) & 0xFFFFFFFF for line in returned] == [
        results[0] & 0xFFFFFFFF
    ] * 3


@isolated
def test_te9_2_the_headers_of_the_columns() -> None:
    from fprobe.tracefs import tracefs

    with tracing("function_graph"):

        def header(*options: str) -> list[str]:
            for option in options:
                tracefs.write(
                    "trace_options", f"funcgraph-{option}" if option[:2] != "no" else f"nofuncgraph-{option[2:]}"
                )
            return tracefs.read("trace").splitlines()[2:]

        assert header() == [
            "# CPU  DURATION                  FUNCTION CALLS",
            "# |     |   |                     |   |   |   |",
        ]
        assert header("abstime") == [
            "#     TIME        CPU  DURATION                  FUNCTION CALLS",
            "#      |          |     |   |                     |   |   |   |",
        ]
        assert header("noabstime", "proc") == [
            "# CPU  TASK/PID         DURATION                  FUNCTION CALLS",
            "# |     |    |           |   |                     |   |   |   |",
        ]
        assert header("nocpu", "noduration") == [
            "#  TASK/PID                      FUNCTION CALLS",
            "#   |    |                       |   |   |   |",
        ]
        assert header("noproc", "duration") == [
            "#  DURATION                  FUNCTION CALLS",
            "#   |   |                     |   |   |   |",
        ]


@pytest.mark.parametrize(
    "nanoseconds, text",
    [
        (633, "  0.633 us    |  "),
        (10_000, "  10.000 us   |  "),
        (10_001, "+ 10.001 us   |  "),
        (924_884, "! 924.884 us  |  "),
        (1_188_362, "# 1188.362 us |  "),
        (12_293_680, "* 12293.68 us |  "),
        (121_036_312, "@ 121036.3 us |  "),
        (1_102_843_999, "$ 1102843 us  |  "),
    ],
)
def test_te9_2_durations_have_seven_digits_and_a_mark(nanoseconds, text):
    from ftrace.tracing.instances.options import TraceOptions
    from ftrace.tracing.output.graph import Columns
    from ftrace.tracing.tracers.available import function_graph

    options = TraceOptions(lambda _name, _on: None, lambda: function_graph)
    assert Columns(options, 1).duration(nanoseconds) == text


def test_te9_2_the_columns_of_a_task_and_a_slot():
    from ftrace.tracing.output.graph import cpu, proc

    assert proc("hit", 250) == "   hit-250    " and proc("a long name", 1234567) == "a long -1234567"
    assert [cpu(3, 4), cpu(3, 11), cpu(10, 11)] == [" 3) ", "  3) ", " 10) "]


@isolated
def test_te9_4_functions_and_depth_that_are_shown() -> None:
    from fprobe.tracefs import tracefs

    module = program()

    def calls() -> list[str]:
        tracefs.write("trace", "")
        module["outer"](1)
        module["leaf"](1)
        return [line.partition("|  ")[2] for line in shown()]

    for name, empty in (("function", "all functions enabled"), ("notrace", "no functions disabled")):
        assert tracefs.read(f"set_graph_{name}") == f"#### {empty} ####\n"
        for wrong in ("nosuch\n", "1\n", "leaf:mod:calls\n", "!leaf\n", "leaf:traceoff\n"):
            assert error_of(tracefs.write, f"set_graph_{name}", wrong) == "EINVAL", wrong
    with tracing("function_graph"):
        tracefs.write("max_graph_depth", "2")
        assert calls() == ["outer() {", "  middle();", "  leaf();", "}", "leaf();"]
        tracefs.write("max_graph_depth", "0")
        tracefs.write("set_graph_function", "middle\n")
        assert tracefs.read("set_graph_function") == "middle [calls]\n"
        assert calls() == ["middle() {", "  leaf();", "  other();", "  leaf();", "}"]
        tracefs.write("set_graph_notrace", "leaf\n")
        assert calls() == ["middle() {", "  other();", "}"]
        tracefs.write("set_graph_function", "\n")
        tracefs.write("set_graph_notrace", "mid*\n")
        assert calls() == ["outer() {", "  leaf();", "}", "leaf();"]
        tracefs.write("set_graph_notrace", "!middle\n", append=True)
        assert len(calls()) == 9
        tracefs.write("set_ftrace_filter", "middle\n")
        assert calls() == ["middle();"]
        tracefs.write("set_ftrace_filter", "\n")
        tracefs.write("set_ftrace_notrace", "leaf\n")
        assert calls() == ["outer() {", "  middle() {", "    other();", "  }", "}"]
        tracefs.write("set_ftrace_notrace", "\n")
    for wrong in ("-1", "x", ""):
        assert error_of(tracefs.write, "max_graph_depth", wrong or "\n") == "EINVAL"


SLEEPS = """
#include <time.h>
int sink;
#define CALL __attribute__((noinline, noipa))
CALL int quick(int x) { return sink = x; }
CALL int sleeps(int x) { struct timespec t = {0, 50000000}; nanosleep(&t, 0); quick(x); return sink = x; }
"""


@isolated
def test_tracing_thresh_and_the_time_that_a_thread_slept() -> None:
    import re

    from fprobe.tracefs import tracefs

    module = program(SLEEPS, "calls")

    def durations() -> list[float]:
        tracefs.write("trace", "")
        module["sleeps"](1)
        return [float(found) for found in re.findall(r"([\d.]+) us", tracefs.read("trace"))]

    with tracing("function_graph"):
        assert durations()[1] >= 50_000
        tracefs.write("trace_options", "nosleep-time")
        assert durations()[1] < 50_000
        tracefs.write("trace_options", "sleep-time")
        tracefs.write("tracing_thresh", "45000")
        assert tracefs.read("tracing_thresh") == "45000\n"
        assert len(durations()) == 1 and shown()[0].endswith("|  } /* sleeps */")
        tracefs.write("tracing_thresh", "0")
        tracefs.write("trace_clock", "counter")  # durations are in nanoseconds nevertheless
        assert durations()[1] >= 50_000


JUMPS = """
#include <setjmp.h>
int sink;
#define CALL __attribute__((noinline, noipa))
static jmp_buf back;
CALL int deep(int x) { if (x) return deep(x - 1) + 1; longjmp(back, 1); }
CALL int leaf(int x) { return sink = x; }
CALL int leaves(int x) { if (!setjmp(back)) deep(3); leaf(x); return leaf(x); }
"""


@isolated
def test_the_depth_is_right_after_calls_that_never_returned() -> None:
    module = program(JUMPS)
    with tracing("function_graph"):
        module["leaves"](1)
        module["leaf"](1)
        assert [line.partition("|  ")[2] for line in shown()] == [
            "leaves() {",
            "  deep() {",
            "    deep() {",
            "      deep() {",
            "        deep() {",
            "  leaf();",
            "  leaf();",
            "}",
            "leaf();",
        ]


@isolated
def test_te9_2_other_records_are_comments_and_threads_that_follow_each_other_are_told_apart() -> None:
    import os
    import re
    import threading
    import time
    from pathlib import Path

    from fprobe.tracefs import tracefs

    module = program()
    tracefs.write("dynamic_events", "f:seen other x=$arg1\n")
    with tracing("function_graph"):
        tracefs.write("events/fprobes/seen/enable", "1")
        with tracefs.open("trace_marker", os.O_WRONLY) as marker:
            marker.write(b"written")
        module["outer"](1)
        assert shown()[0] == "              |  /* written */"
        size = module.symbol("other").size
        assert shown()[4:7] == [
            "              |      other() {",
            f"              |        /* seen: (other+0x0/{size:#x}) x=0x1 */",
            "N us |      }",
        ]
        tracefs.write("events/enable", "0")
        tracefs.write("trace", "")
        for _ in range(2):  # the second has the slot of the first
            thread = threading.Thread(target=module["leaf"], args=(1,))
            thread.start()
            thread.join()  # which returns a little before the thread ends and gives its slot back
            while Path(f"/proc/self/task/{thread.native_id}").exists():
                time.sleep(0.001)
        lines = shown()
        assert lines[0] == lines[5] == "N us |  leaf();"
        assert lines[1] == lines[3] == " ------------------------------------------"
        tasks = [line for line in tracefs.read("trace").splitlines() if " => " in line]
        assert re.fullmatch(r" \d+\) +\S+-\d+ +=> +\S+-\d+ *", tasks[0]) and len(tasks[0]) == 36 and lines[4] == ""
    tracefs.write("dynamic_events", "")


@isolated
def test_te9_8_the_profile_of_functions() -> None:
    import re

    from fprobe.tracefs import tracefs

    module = program()

    def rows() -> dict[str, int]:
        text = tracefs.read("trace_stat/function0")
        head, rule, *lines = text.splitlines()
        assert head == "  Function                               Hit    Time            Avg             s^2"
        assert rule == "  --------                               ---    ----            ---             ---"
        found = [re.fullmatch(r"  (\S+) +(\d+)    ([\d.]+) us +([\d.]+) us +([\d.]+) us +", line) for line in lines]
        times = [float(match[3]) for match in found if match]
        assert len(times) == len(lines) and times == sorted(times, reverse=True)
        return {match[1]: int(match[2]) for match in found if match}

    assert tracefs.read("function_profile_enabled") == "0\n" and rows() == {}
    tracefs.write("tracing_on", "0")
    tracefs.write("set_ftrace_notrace", "other\n")
    tracefs.write("function_profile_enabled", "2")
    assert tracefs.read("function_profile_enabled") == "1\n"
    module["outer"](1)
    module["down"](9)
    expected = {"outer": 1, "middle": 1, "leaf": 3, "down": 10}
    assert rows() == expected
    tracefs.write("function_profile_enabled", "0")
    module["leaf"](1)
    assert rows() == expected
    tracefs.write("function_profile_enabled", "1")
    module["leaf"](1)
    assert rows() == {"leaf": 1}
    tracefs.write("function_profile_enabled", "0")
    assert error_of(tracefs.write, "function_profile_enabled", "x") == "EINVAL"


@isolated
def test_replacing_one_set_leaves_the_others_where_they_are():
    """The table of the other set went with those that were replaced, and hits looked into freed memory for ever."""
    import gc

    from ftrace.core.runtime import AddressTable, runtime
    from ftrace.tracing.tracers.graph_rules import AddressSets

    def tables():
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, AddressTable)]

    runtime()  # has tables of its own
    before = len(tables())
    sets = AddressSets()
    assert sets.replace("kept", {1, 2})
    for _ in range(5):
        assert sets.replace("other", {3})
        sets.forget_replaced()
        assert len(tables()) == before + 2
    assert sets.replace("other", set()) == 0
    sets.forget_replaced()
    assert len(tables()) == before + 1
    assert sets.replace("other", {0}), "a set with nothing in it that is looked up is still one"


@isolated
def test_te4_1_a_pipe_can_be_read_while_the_program_records_without_a_pause() -> None:
    import threading

    from fprobe.tracefs import tracefs

    spin = "volatile int stop; CALL int spin(void) { while (!stop) leaf(1); return 0; } CALL int end(void) { return stop = 1; }"
    module = program(CALLS + spin)
    tracefs.write("set_ftrace_filter", "leaf\nspin\n")
    with tracing("function_graph"), tracefs.open("trace_pipe") as pipe:
        thread = threading.Thread(target=module["spin"])
        thread.start()
        try:
            some = pipe.read(4096)
            some += pipe.read()
            assert thread.is_alive()
        finally:
            module["end"]()
            thread.join()
    lines = [normalised(line) for line in some.decode().splitlines()]
    assert lines.count("N us |    leaf();") > len(lines) * 0.9, "an entry is shown with its return"


def test_te9_2_an_entry_is_held_back_for_its_return() -> None:
    from ftrace.ring_buffer.reader import Record
    from ftrace.tracing.events.builtin import FUNCTION, GRAPH_ENTRY, GRAPH_EXIT
    from ftrace.tracing.output.pipe import held_back

    def records(*kinds: tuple[int, int]) -> list[Record]:
        return [Record(0, slot, 0, kind.to_bytes(8, "little")) for slot, kind in kinds]

    entry, exit, call = GRAPH_ENTRY.id, GRAPH_EXIT.id, FUNCTION.id
    assert held_back(records((0, call), (0, call))) == 1
    assert held_back(records((0, entry), (0, exit))) == 1
    assert held_back(records((0, exit), (1, entry), (0, call))) == 2
    assert held_back(records((1, entry), *[(0, call)] * 63)) == 64
    assert held_back(records((1, entry), *[(0, call)] * 64)) == 1
