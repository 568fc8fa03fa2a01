"""latency-format, alone and with verbose, in plain lines and of function_graph (TE-3.2, TE-9.2)."""

from __future__ import annotations

import struct

from isolation import isolated

from ftrace.ring_buffer.reader import Record
from ftrace.tracing.instances.options import TraceOptions
from ftrace.tracing.output.graph import Columns
from ftrace.tracing.output.lines import LineFormat
from ftrace.tracing.tracers.available import function_graph

UNKNOWN = 0xFFFE
"""A type that no event has: the text is short."""


class Tgids:
    is_saving = False

    def see(self, _records):
        pass


def options(*names: str) -> TraceOptions:
    made = TraceOptions(lambda _name, _on: None, lambda: function_graph)
    for name in names:
        made.set(name, True)
    return made


def shown(in_ns: bool, *names: str) -> list[str]:
    """Two records, 142,500 units apart, of a buffer that was emptied at 1000."""
    plain = LineFormat(options("latency-format", *names), in_ns, Tgids(), 1000)
    plain.comm = lambda _tid: "longcomm-name"
    body = struct.pack("<II", UNKNOWN, 7)
    return list(plain.lines([Record(60_000, 1, 0, body), Record(202_500, 1, 0, body)]))


def test_te3_2_a_line_has_the_time_since_the_start_and_the_mark_of_the_time_until_the_next() -> None:
    assert shown(True) == [
        f"longcomm-7         1.....   59us!: Unknown type {UNKNOWN}\n",
        f"longcomm-7         1.....  202us : Unknown type {UNKNOWN}\n",
    ]


def test_te3_2_with_verbose_there_are_the_columns_of_one_record_each() -> None:
    assert shown(True, "verbose") == [
        f"   longcomm-name       7   1 0 00000000 00000000 [0000003c] 0.059ms (+0.143ms): Unknown type {UNKNOWN}\n",
        f"   longcomm-name       7   1 0 00000000 00000001 [000000cb] 0.202ms (+0.000ms): Unknown type {UNKNOWN}\n",
    ]


def test_te3_2_a_clock_that_counts_something_else_is_shown_from_the_start_too() -> None:
    assert shown(False) == [
        f"longcomm-7         1..... 59000: Unknown type {UNKNOWN}\n",
        f"longcomm-7         1..... 201500: Unknown type {UNKNOWN}\n",
    ]
    assert shown(False, "verbose")[0] == (
        f"   longcomm-name       7   1 0 00000000 00000000 [000000000000ea60] 59000 (+142500): Unknown type {UNKNOWN}\n"
    )


def test_te9_2_function_graph_has_a_column_of_flags() -> None:
    columns = Columns(options("latency-format"), 1)
    assert columns.header().splitlines() == [
        "#      _-----=> irqs-off        ",
        "#     / _----=> need-resched    ",
        "#    | / _---=> hardirq/softirq ",
        "#    || / _--=> preempt-depth   ",
        "#    ||| /                      ",
        "# CPU||||     DURATION                  FUNCTION CALLS",
        "# |  ||||      |   |                     |   |   |   |",
    ]
    assert columns.prologue(0, 0, "hit", 1) == " 0)  ..... | "


@isolated
def test_te9_2_its_header_is_that_of_latencies_unless_there_is_nothing_to_show() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("current_tracer", "function_graph")
    tracefs.write("trace_options", "latency-format")
    assert tracefs.read("trace") == "# tracer: function_graph\n#\n"
    tracefs.write("trace_marker", "a")
    assert tracefs.read("trace").splitlines()[2].startswith("# function_graph latency trace v1.1.5 on ")
    tracefs.write("trace_options", "nocontext-info")
    assert tracefs.read("trace") == "# tracer: function_graph\n#\n/* a */\n"


@isolated
def test_te4_8_with_another_clock_the_time_starts_anew() -> None:
    from fprobe.tracefs import tracefs

    tracefs.write("trace_options", "latency-format")
    tracefs.write("trace_clock", "counter")
    tracefs.write("trace_marker", "a")
    since = int(tracefs.read("trace").splitlines()[-1].split()[2].rstrip(":"))
    assert 0 <= since < 10
