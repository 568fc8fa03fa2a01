"""The columns of function_graph: what stands in front of a call, and above the whole. kernel/trace/trace_functions_graph.c."""

from __future__ import annotations

from ftrace.output.context import timestamp
from ftrace.output.options import TraceOptions

_PROC_WIDTH = 14
_COMM_WIDTH = 7
_MARKS = ((1_000_000_000, "$"), (100_000_000, "@"), (10_000_000, "*"), (1_000_000, "#"), (100_000, "!"), (10_000, "+"))
"""The mark of a duration: the first whose nanoseconds it exceeds."""
_DIGITS, _WIDTH = 7, 8
NO_DURATION = "              |  "
RULE = " ------------------------------------------\n"


def mark(duration: int) -> str:
    """The letter in front of a duration in nanoseconds: trace_find_mark()."""
    return next((letter for limit, letter in _MARKS if duration > limit), " ")


def duration_text(duration: int) -> str:
    """A duration in nanoseconds as microseconds, of at most seven digits: trace_print_graph_duration()."""
    microseconds, rest = divmod(duration, 1000)
    text = str(microseconds)
    if len(text) < _DIGITS:
        text += "." + f"{rest:03}"[: _DIGITS - len(text)]
    return text + " us " + " " * (_WIDTH - len(text))


def proc(comm: str, tid: int) -> str:
    """A thread's name and id, centred."""
    text = f"{comm[:_COMM_WIDTH]}-{tid}"
    spare = max(_PROC_WIDTH - len(text), 0)
    return " " * (spare // 2) + text + " " * (spare - spare // 2)


def cpu(slot: int, slots: int) -> str:
    """A slot's number, as wide as the highest of `slots`."""
    return f" {slot:{len(str(slots - 1))}}) "


class Columns:
    """The columns that the options ask for. `slots`: how many slots there are."""

    def __init__(self, options: TraceOptions, slots: int) -> None:
        self._slots = slots
        self._shown = options["context-info"]
        self._abstime, self._cpu = options["funcgraph-abstime"], options["funcgraph-cpu"]
        self._proc, self._duration = options["funcgraph-proc"], options["funcgraph-duration"]
        self._overhead = options["funcgraph-overhead"]

    def prologue(self, stamp: int, slot: int, comm: str, tid: int) -> str:
        """What comes before the duration: print_graph_prologue()."""
        if not self._shown:
            return ""
        parts = [f"{_truncated(stamp)} |  "] if self._abstime else []
        parts += [cpu(slot, self._slots)] if self._cpu else []
        parts += [f"{proc(comm, tid)} | "] if self._proc else []
        return "".join(parts)

    def duration(self, nanoseconds: int | None) -> str:
        """The column of the duration; None: blank. print_graph_duration()."""
        if not (self._shown and self._duration):
            return ""
        if nanoseconds is None:
            return NO_DURATION
        letter = mark(nanoseconds) if self._overhead else " "
        return f"{letter} {duration_text(nanoseconds)}|  "

    def header(self) -> str:
        """The two lines above: print_graph_headers_flags()."""
        if not self._shown:
            return ""
        columns = (
            (self._abstime, "     TIME       ", "      |         "),
            (self._cpu, " CPU", " |  "),
            (self._proc, "  TASK/PID       ", "   |    |        "),
            (self._duration, "  DURATION   ", "   |   |      "),
            (True, "               FUNCTION CALLS", "               |   |   |   |"),
        )
        lines = zip(*((name, rule) for shown, name, rule in columns if shown), strict=True)
        return "".join(f"#{''.join(line)}\n" for line in lines)


def _truncated(stamp: int) -> str:
    """Seconds and whole microseconds."""
    return timestamp(stamp - stamp % 1000, True)
