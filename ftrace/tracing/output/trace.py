"""The file trace: a header, and a line for each record of all slots, by time. Nothing is consumed.

The header is that of print_func_help_header() and related functions of kernel/trace/trace.c.
"""

from __future__ import annotations

from collections.abc import Iterator

from ftrace.ring_buffer import clock
from ftrace.ring_buffer.arena import Slots, arena
from ftrace.ring_buffer.reader import Copy
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.instances.options import TraceOptions
from ftrace.tracing.instances.trace_array import TraceArray
from ftrace.tracing.output.context import latency_header
from ftrace.tracing.output.graph import Columns, GraphFormat, Slot
from ftrace.tracing.output.lines import LineFormat
from ftrace.tracing.tracers.available import function_graph


def record_format(array: TraceArray, slots: dict[int, Slot], *, annotates: bool = False) -> LineFormat | GraphFormat:
    """The present format of a trace array's records. `slots`: function_graph's state from records shown before."""
    in_ns = clock.find(array.buffer.clock).in_ns
    options = array.options.present
    lines = LineFormat(options, in_ns, array.tgids, array.emptied, annotates and options["annotate"])
    return GraphFormat(options, lines, slots, slots_in_use()) if array.tracer is function_graph else lines


def slots_in_use() -> int:
    """The number of slots, which the files call CPUs."""
    return max(arena().slots_in_use, 1)


def trace_lines(array: TraceArray, slot: Slots = None) -> Iterator[str]:
    """The texts of the file trace of a trace array, or of one of its slots: as the buffer is at the first one."""
    with events_locked():  # no event's number may pass to another one before the names are looked up
        copy = array.buffer.copy(slot)
        shown = record_format(array, {}, annotates=copy.overrun > 0)
    yield from _texts(array, shown, copy)


_SNAPSHOT_COMMANDS = (
    "Snapshot commands:",
    "echo 0 > snapshot : Clears and frees snapshot buffer",
    "echo 1 > snapshot : Allocates snapshot buffer, if not already allocated.",
    "                     Takes a snapshot of the main buffer.",
    "echo 2 > snapshot : Clears snapshot buffer (but does not allocate or free)",
    "                     (Doesn't have to be '2' works with any number that",
    "                      is not a '0' or '1')",
)
_SLOT_SNAPSHOT_COMMANDS = (
    "Snapshot commands:",
    "echo 0 > snapshot : Invalid for per_cpu snapshot file.",
    "echo 1 > snapshot : Not supported with this kernel.",
    "                    Must use main snapshot file to allocate.",
    "echo 2 > snapshot : Clears this cpu's snapshot buffer (but does not allocate)",
    "                     (Doesn't have to be '2' works with any number that",
    "                      is not a '0' or '1')",
)


def snapshot_lines(array: TraceArray, slot: Slots = None) -> Iterator[str]:
    """The file snapshot: as trace, of what the last snapshot took; what can be written to it if that is nothing."""
    with events_locked():
        copy = array.buffer.snapshot_copy(slot)
        shown = record_format(array, {}, annotates=copy is not None and copy.overrun > 0)
    if copy is not None and copy.entries:
        yield from _texts(array, shown, copy)
        return
    state = "allocated" if array.buffer.has_snapshot else "freed"
    commands = _SNAPSHOT_COMMANDS if slot is None else _SLOT_SNAPSHOT_COMMANDS
    head = f"# tracer: {array.tracer.name}\n#\n#\n# * Snapshot is {state} *\n#\n"
    yield head + "".join(f"# {line}\n" for line in commands)


def _texts(array: TraceArray, shown: LineFormat | GraphFormat, copy: Copy) -> Iterator[str]:
    """The header and the lines."""
    yield _header(array, copy.entries, copy.overrun)
    yield from shown.lines(copy.records())


def _header(array: TraceArray, entries: int, overrun: int) -> str:
    tracer, options, slots = array.tracer, array.options, slots_in_use()
    if tracer is not function_graph:
        return trace_header(tracer.name, options, entries, entries + overrun, slots)
    return tracer_name(tracer.name) + _graph_header(array, entries, overrun)


def _graph_header(array: TraceArray, entries: int, overrun: int) -> str:
    """print_graph_headers_flags() of kernel/trace/trace_functions_graph.c."""
    options, slots = array.options, slots_in_use()
    if not options["context-info"]:
        return ""
    columns = Columns(options, slots).header()
    if not options["latency-format"]:
        return columns
    above = latency_header(array.tracer.name, entries, entries + overrun, slots, verbose=True)
    return above + columns if entries else ""


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
