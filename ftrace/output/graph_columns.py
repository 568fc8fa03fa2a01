"""The columns and the header of function_graph. As kernel/trace/trace_functions_graph.c."""

from __future__ import annotations

from ftrace.output.context import timestamp
from ftrace.output.durations import duration_text, mark
from ftrace.output.latency import NO_FLAGS
from ftrace.output.options import TraceOptions

_PROC_WIDTH = 14
_COMM_WIDTH = 7
_TIME_WIDTH, _CPU_WIDTH, _TASK_WIDTH = 16, 4, 17
"""Widths of the columns before the flags."""
_FLAGS = (
    "  _-----=> irqs-off        ",
    " / _----=> need-resched    ",
    "| / _---=> hardirq/softirq ",
    "|| / _--=> preempt-depth   ",
    "||| /                      ",
)
NO_DURATION = "              |  "
RULE = " ------------------------------------------\n"


def proc(comm: str, tid: int) -> str:
    """A thread's name and id, centred."""
    text = f"{comm[:_COMM_WIDTH]}-{tid}"
    spare = max(_PROC_WIDTH - len(text), 0)
    return " " * (spare // 2) + text + " " * (spare - spare // 2)


def cpu(slot: int, slots: int) -> str:
    """A slot's number, as wide as the highest of `slots`."""
    return f" {slot:{len(str(slots - 1))}}) "


class Columns:
    """The columns, as selected by the options. `slots`: the number of slots."""

    def __init__(self, options: TraceOptions, slots: int) -> None:
        self._slots = slots
        self._shown = options["context-info"]
        self._abstime, self._cpu = options["funcgraph-abstime"], options["funcgraph-cpu"]
        self._proc, self._duration = options["funcgraph-proc"], options["funcgraph-duration"]
        self._overhead = options["funcgraph-overhead"]
        self._latency = options["latency-format"]

    def prologue(self, stamp: int, slot: int, comm: str, tid: int) -> str:
        """The columns before the duration: print_graph_prologue()."""
        if not self._shown:
            return ""
        parts = [f"{_truncated(stamp)} |  "] if self._abstime else []
        parts += [cpu(slot, self._slots)] if self._cpu else []
        parts += [f"{proc(comm, tid)} | "] if self._proc else []
        parts += [f" {NO_FLAGS} | "] if self._latency else []
        return "".join(parts)

    def duration(self, nanoseconds: int | None) -> str:
        """The column of the duration; blank for None. As print_graph_duration()."""
        if not (self._shown and self._duration):
            return ""
        if nanoseconds is None:
            return NO_DURATION
        letter = mark(nanoseconds) if self._overhead else " "
        return f"{letter} {duration_text(nanoseconds)}|  "

    def header(self) -> str:
        """The two header lines; with latency-format also those for the flags: __print_graph_headers_flags()."""
        if not self._shown:
            return ""
        columns = (
            (self._abstime, "     TIME       ", "      |         "),
            (self._cpu, " CPU", " |  "),
            (self._proc, "  TASK/PID       ", "   |    |        "),
            (self._latency, "||||   ", "||||   "),
            (self._duration, "  DURATION   ", "   |   |      "),
            (True, "               FUNCTION CALLS", "               |   |   |   |"),
        )
        lines = zip(*((name, rule) for shown, name, rule in columns if shown), strict=True)
        return self._flags() + "".join(f"#{''.join(line)}\n" for line in lines)

    def _flags(self) -> str:
        """print_lat_header()."""
        if not self._latency:
            return ""
        room = " " * (_TIME_WIDTH * self._abstime + _CPU_WIDTH * self._cpu + _TASK_WIDTH * self._proc)
        return "".join(f"#{room}{line}\n" for line in _FLAGS)


def _truncated(stamp: int) -> str:
    """Seconds and whole microseconds."""
    return timestamp(stamp - stamp % 1000, True)
