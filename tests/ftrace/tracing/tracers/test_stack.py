"""The stack tracer: stack_trace, stack_max_size, stack_trace_filter (TE-9.10)."""

from __future__ import annotations

import re
from typing import Any

from isolation import isolated

ROOM = 4096
DEEP = f"""
volatile char sink;
#define CALL __attribute__((noinline, noipa))
CALL int leaf(int x) {{ sink = x; return x + 1; }}
CALL int roomy(int x) {{ volatile char room[{ROOM}]; room[x] = x; int r = leaf(x); return r + room[x]; }}
CALL int top(int x) {{ int r = roomy(x); sink = r; return r + 1; }}
CALL int shallow(int x) {{ int r = leaf(x); sink = r; return r + 1; }}
"""
_HEAD = "        Depth    Size   Location    ({} entries)\n        -----    ----   --------\n"
_OFF = """\
#
#  Stack tracer disabled
#
# To enable the stack tracer, either add 'stacktrace' to the
# kernel command line
# or 'echo 1 > /proc/sys/kernel/stack_tracer_enabled'
#
"""


def program() -> Any:
    from traced import program as loaded

    return loaded(DEEP, "deep")


def rows() -> list[tuple[int, int, str]]:
    """Depth, frame size and function of each row."""
    from fprobe.tracefs import tracefs

    text = tracefs.read("stack_trace")
    found = [
        re.fullmatch(r" *(\d+)\) +(\d+) +(\d+)   (\w+)\+0x[0-9a-f]+/0x[0-9a-f]+ \[\w+\]", line)
        for line in text.splitlines()[2:]
    ]
    assert text.startswith(_HEAD.format(len(found))) and all(found), text
    assert [int(row[1]) for row in found if row] == list(range(len(found)))
    return [(int(row[2]), int(row[3]), row[4]) for row in found if row]


@isolated
def test_te9_10_the_deepest_stack_with_the_size_of_each_frame() -> None:
    from fprobe.tracefs import tracefs
    from ftrace.tracing.files.sysctl import set_stack_tracer_enabled, stack_tracer_enabled

    module = program()
    assert tracefs.read("stack_trace") == _HEAD.format(0) + _OFF
    assert (tracefs.read("stack_max_size"), stack_tracer_enabled()) == ("0\n", 0)
    set_stack_tracer_enabled(2)
    assert stack_tracer_enabled() == 2
    module["shallow"](1)
    assert [name for _, _, name in rows()[:2]] == ["leaf", "shallow"]
    module["top"](1)
    deepest = rows()
    assert [name for _, _, name in deepest[:3]] == ["leaf", "roomy", "top"]
    depths, sizes = [row[0] for row in deepest], [row[1] for row in deepest]
    assert depths == sorted(depths, reverse=True) and sum(sizes) == depths[0]
    assert sizes[0] == 8 and ROOM <= sizes[1] <= ROOM + 128
    assert tracefs.read("stack_max_size") == f"{depths[0]}\n"
    module["shallow"](1)
    assert rows() == deepest  # one that is less deep replaces nothing
    tracefs.write("stack_max_size", "0")
    module["shallow"](1)
    assert [name for _, _, name in rows()[:2]] == ["leaf", "shallow"]


@isolated
def test_te9_10_it_can_be_limited_switched_off_and_given_a_threshold() -> None:
    from traced import error_of

    from fprobe.tracefs import tracefs
    from ftrace.tracing.files.sysctl import set_stack_tracer_enabled

    module = program()
    assert tracefs.read("stack_trace_filter") == "#### all functions enabled ####\n"
    tracefs.write("stack_trace_filter", "roomy\n")
    assert tracefs.read("stack_trace_filter") == "roomy [deep]\n"
    set_stack_tracer_enabled(1)
    tracefs.write("stack_max_size", "100000000")
    module["top"](1)
    assert rows() == []
    tracefs.write("stack_max_size", "0")
    module["top"](1)
    assert [name for _, _, name in rows()[:2]] == ["roomy", "top"]
    set_stack_tracer_enabled(0)
    kept = rows()
    tracefs.write("stack_trace_filter", "")
    module["top"](1)
    assert rows() == kept
    tracefs.write("stack_max_size", "0")
    assert _OFF in tracefs.read("stack_trace")
    assert error_of(tracefs.write, "stack_max_size", "x") == "EINVAL"
    assert error_of(tracefs.write, "stack_trace_filter", "leaf:traceoff\n") == "ENODEV"
    assert error_of(tracefs.write, "stack_trace_filter", "nosuch\n") == "EINVAL"


@isolated
def test_te9_10_hooked_calls_have_their_callers_and_threads_their_own_stacks() -> None:
    import threading

    from fprobe.tracefs import tracefs
    from ftrace.tracing.files.sysctl import set_stack_tracer_enabled

    module = program()
    tracefs.write("current_tracer", "function_graph")
    set_stack_tracer_enabled(1)
    thread = threading.Thread(target=lambda: module["top"](1))
    thread.start()
    thread.join()
    assert [name for _, _, name in rows()[:3]] == ["leaf", "roomy", "top"]
    in_thread = rows()[0][0]
    tracefs.write("stack_max_size", "0")
    module["top"](1)
    assert [name for _, _, name in rows()[:3]] == ["leaf", "roomy", "top"]
    assert ROOM < in_thread < 1 << 20 and ROOM < rows()[0][0] < 1 << 20


@isolated
def test_hazards_7_the_child_of_a_fork_goes_on() -> None:
    import os

    from fprobe.tracefs import tracefs
    from ftrace.tracing.files.sysctl import set_stack_tracer_enabled
    from ftrace.tracing.tracers.stack import stack_tracer

    module = program()
    set_stack_tracer_enabled(1)
    module["shallow"](1)
    stack_tracer._state.sequence += 1  # a hit of another thread is at it when this one forks
    child = os.fork()
    if not child:
        tracefs.write("stack_max_size", "0")
        module["top"](1)
        os._exit(0 if [name for _, _, name in rows()[:2]] == ["leaf", "roomy"] else 1)
    assert os.waitpid(child, 0)[1] == 0
