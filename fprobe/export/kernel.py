"""Records as lines of the kernel's file `trace`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fprobe.export.formats import EventFormat, text
from fprobe.export.print_fmt import printed
from fprobe.export.source import Source
from fprobe.export.trace_dat_reader import UNKNOWN
from ftrace.events.stack_records import FTRACE_TRAMPOLINE_MARKER
from ftrace.output.context import timestamp
from ftrace.ring_buffer.clock import find as find_clock
from ftrace.ring_buffer.reader import Record

_FLAGS = "....."


def lines(trace: Source) -> Iterator[str]:
    """A line for each record, in order of time, without the newline. A record of an unknown event shows its type number."""
    in_ns = find_clock(trace.clock).in_ns
    for record in trace.records():
        if record.lost:
            number = "" if record.lost == UNKNOWN else f"{record.lost} "
            yield f"CPU:{record.slot} [LOST {number}EVENTS]"
        tid = record.common.pid
        when = timestamp(record.stamp, in_ns)
        front = f"{trace.comm(tid):>16}-{tid:<7} [{record.slot:03}] {_FLAGS} {when}: "
        yield front + record_text(trace, record)


def record_text(trace: Source, record: Record) -> str:
    """The text of a record after its time."""
    event = trace.formats.get(record.common.type)
    if event is None:
        return f"Unknown type {record.common.type}"
    own = _OWN.get(event.name) if event.group == "ftrace" else None
    if own is not None:
        return own(trace, event, record.data)
    return f"{event.name}: {printed(event, record.data, trace.symbols.describe, trace.symbols.name)}"


def _function(trace: Source, event: EventFormat, data: bytes) -> str:
    values = event.values(data)
    return f"{trace.symbols.name(values['ip'])} <-{trace.symbols.name(values['parent_ip'])}"


def _print(trace: Source, event: EventFormat, data: bytes) -> str:
    ip = event.values(data)["ip"]
    return f"{trace.symbols.name(ip) if ip else 'tracing_mark_write'}: {text(data[16:])}".rstrip("\n")


def _stack(trace: Source, event: EventFormat, data: bytes) -> str:
    callers = [address for address in event.values(data)["caller"] if address]
    name = "<user stack trace>" if event.name == "user_stack" else "<stack trace>"
    return "\n".join([name, *(f" => {_frame(trace, address)}" for address in callers)])


def _frame(trace: Source, address: int) -> str:
    return "[FTRACE TRAMPOLINE]" if address == FTRACE_TRAMPOLINE_MARKER else trace.symbols.describe(address)


_OWN: dict[str, Callable[[Source, EventFormat, bytes], str]] = {
    "function": _function,
    "print": _print,
    "kernel_stack": _stack,
    "user_stack": _stack,
}
