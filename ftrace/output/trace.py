"""The file trace: a header, and a line for each record of all slots, by time. Nothing is consumed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ftrace.events.trace_array import TraceArray
from ftrace.output.header import trace_header
from ftrace.output.lines import LineFormat
from ftrace.ring_buffer import clock
from ftrace.ring_buffer.arena import arena
from ftrace.ring_buffer.reader import Record


def line_format(array: TraceArray) -> LineFormat:
    """How the records of a trace array are shown now."""
    return LineFormat(array.options, clock.find(array.buffer.clock).in_ns)


def slots_in_use() -> int:
    """How many slots there are: what the files call CPUs."""
    return max(arena().slots_in_use, 1)


def trace_text(array: TraceArray, slot: int | None = None) -> str:
    """The file trace of a trace array, or of one of its slots."""
    records = list(array.buffer.records(slot))
    return _text(array, records, array.buffer.overrun(slot))


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


def snapshot_text(array: TraceArray, slot: int | None = None) -> str:
    """The file snapshot: as trace, of what the last snapshot took; what can be written to it if that is nothing."""
    records = list(array.buffer.snapshot_records(slot))
    if records:
        return _text(array, records, array.buffer.snapshot_overrun(slot))
    state = "allocated" if array.buffer.has_snapshot else "freed"
    commands = _SNAPSHOT_COMMANDS if slot is None else _SLOT_SNAPSHOT_COMMANDS
    head = f"# tracer: {array.current_tracer}\n#\n#\n# * Snapshot is {state} *\n#\n"
    return head + "".join(f"# {line}\n" for line in commands)


def _text(array: TraceArray, records: list[Record], overrun: int) -> str:
    """The header and the lines. `overrun`: records that were overwritten."""
    options, shown = array.options, line_format(array)
    header = trace_header(array.current_tracer, options, len(records), len(records) + overrun, slots_in_use())
    annotate = options["annotate"] and overrun > 0
    return header + "".join(_lines(records, annotate, shown))


def _lines(records: Iterable[Record], annotate: bool, shown: LineFormat) -> Iterator[str]:
    """The lines; with `annotate` also one above the first record of every slot but the first."""
    seen: set[int] = set()
    for record in records:
        if annotate and seen and record.slot not in seen:
            yield f"##### CPU {record.slot} buffer started ####\n"
        seen.add(record.slot)
        yield shown.line(record)
