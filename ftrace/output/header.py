"""The header of the file trace, as print_func_help_header() and related functions of kernel/trace/trace.c."""

from __future__ import annotations

from ftrace.output.latency import latency_header
from ftrace.output.options import TraceOptions

_FLAGS = (
    "                                _-----=> irqs-off/BH-disabled",
    "                               / _----=> need-resched",
    "                              | / _---=> hardirq/softirq",
    "                              || / _--=> preempt-depth",
    "                              ||| / _-=> migrate-disable",
    "                              |||| /     delay",
)
_TGID_WIDTH = 10


def trace_header(tracer: str, options: TraceOptions, entries: int, written: int, cpus: int) -> str:
    """The header. `entries`: records in the buffer. `written`: records ever written. `cpus`: the number of slots."""
    return tracer_name(tracer) + _counts_and_columns(tracer, options, entries, written, cpus)


def tracer_name(tracer: str) -> str:
    """The first two lines, for all tracers."""
    return f"# tracer: {tracer}\n#\n"


def _counts_and_columns(tracer: str, options: TraceOptions, entries: int, written: int, cpus: int) -> str:
    if not options["context-info"]:
        return ""
    if options["latency-format"]:
        return latency_header(tracer, entries, written, cpus, options["verbose"])
    if options["verbose"]:
        return ""
    lines = [f" entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}", ""]
    lines += _columns(options["irq-info"], options["record-tgid"])
    return "".join(f"#{line}\n" for line in lines)


def _columns(flags: bool, tgid: bool) -> list[str]:
    names = "           TASK-PID  " + ("     TGID " if tgid else "") + "   CPU#  "
    rules = "              | |    " + ("       |  " if tgid else "") + "     |   "
    if not flags:
        return [f"{names}   TIMESTAMP  FUNCTION", f"{rules}      |         |"]
    shift = " " * (_TGID_WIDTH if tgid else 0)
    return [
        *(shift + line for line in _FLAGS),
        f"{names}|||||  TIMESTAMP  FUNCTION",
        f"{rules}|||||     |         |",
    ]
