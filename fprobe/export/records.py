"""Records as text, as in the kernel's file `trace` (texts are escaped), and as objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from fprobe.export.formats import EventFormat, text
from fprobe.export.print_fmt import printed
from fprobe.export.trace_dat_reader import UNKNOWN, Instance
from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER
from ftrace.ring_buffer.clock import find as find_clock
from ftrace.ring_buffer.reader import Record
from ftrace.tracing.output.context import timestamp
from sandbox.process.printable import escaped


class Symbols(Protocol):
    """Symbols for addresses."""

    def describe(self, address: int, /) -> str:
        """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""

    def name(self, address: int, /) -> str:
        """`symbol [module]`; the bare address in hexadecimal if no symbol covers it."""


class Source(Protocol):
    """Records, with the formats, symbols and thread names needed to print them."""

    @property
    def formats(self) -> Mapping[int, EventFormat]:
        """Events by their type numbers."""

    @property
    def symbols(self) -> Symbols:
        """Symbols for the addresses in records."""

    @property
    def instances(self) -> Sequence[Instance]:
        """The trace arrays that records come from, the top level first."""

    def comm(self, tid: int, /) -> str:
        """The name of a thread."""

    def merged(self) -> Iterator[tuple[Instance, Record]]:
        """The records of all slots, in order of time, each with its trace array."""


_FLAGS = "....."


def lines(trace: Source) -> Iterator[str]:
    """A line for each record, in order of time, without the newline. A record of an unknown event shows its type number."""
    width = max((len(each.name) for each in trace.instances), default=0)
    for instance, record in trace.merged():
        where = f"{instance.name + ':' if instance.name else '':>{width + 1}} " if width else ""
        if record.lost:
            number = "" if record.lost == UNKNOWN else f"{record.lost} "
            yield f"{where}CPU:{record.slot} [LOST {number}EVENTS]"
        tid = record.common.pid
        when = timestamp(record.stamp, find_clock(instance.clock).in_ns)
        front = where + f"{escaped(trace.comm(tid)):>16}-{tid:<7} [{record.slot:03}] {_FLAGS} {when}: "
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
    ip, parent = event.address("ip", data), event.address("parent_ip", data)
    return f"{trace.symbols.name(ip)} <-{trace.symbols.name(parent)}"


def _print(trace: Source, event: EventFormat, data: bytes) -> str:
    ip, marker = event.address("ip", data), escaped(text(data[16:]).rstrip("\n"))
    return f"{trace.symbols.name(ip) if ip else 'tracing_mark_write'}: {marker}"


def _stack(trace: Source, event: EventFormat, data: bytes) -> str:
    callers = [address for address in event.addresses("caller", data) if address]
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


def objects(trace: Source) -> Iterator[dict[str, Any]]:
    """An object for each record, in order of time: event, time, thread, and the event's fields by name."""
    for instance, record in trace.merged():
        tid = record.common.pid
        event = trace.formats.get(record.common.type)
        name = {"event": event.name, "group": event.group} if event else {"event": None, "type": record.common.type}
        common = {"time_ns": record.stamp, "cpu": record.slot, "tid": tid, "comm": trace.comm(tid), "lost": record.lost}
        where = {"instance": instance.name} if instance.name else {}
        yield name | where | common | {"fields": event.values(record.data) if event else {}}
