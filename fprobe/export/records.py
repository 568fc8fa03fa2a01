"""Records as text, as in the kernel's file `trace` (texts are escaped), and as objects for JSON."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from fprobe.export.formats import EventFormat, text
from fprobe.export.print_fmt import Addresses, address_of, printed
from fprobe.export.trace_dat_reader import UNKNOWN, Instance
from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER
from ftrace.ring_buffer.clock import find as find_clock
from ftrace.ring_buffer.formatters import Memo, Show, compiled, line_formatter
from ftrace.ring_buffer.reader import Record
from ftrace.tracing.binary_printf import printed as print_arguments
from ftrace.tracing.output.context import NO_FLAGS, front
from sandbox.process.printable import escaped

_WORD = struct.Struct("<Q")
_TEXT, _ARGUMENTS = 16, 24
"""Offsets in a record of trace_printk: of the text's address, and of what follows it."""


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

    def text(self, address: int, /) -> str:
        """A text that records refer to by its address."""

    def merged(self) -> Iterator[tuple[Instance, Record]]:
        """The records of all slots, in order of time, each with its trace array."""


def lines(trace: Source) -> Iterator[str]:
    """A line for each record, in order of time, without the newline. A record of an unknown event shows its type number."""
    width = max((len(each.name) for each in trace.instances), default=0)
    shows = Memo(partial(_show_of, trace, Addresses(Memo(trace.symbols.describe), Memo(trace.symbols.name))))
    places = {
        id(each): f"{each.name + ':' if each.name else '':>{width + 1}} " if width else "" for each in trace.instances
    }
    formatters = {id(each): _formatter(trace, each, places[id(each)], shows) for each in trace.instances}
    for instance, record in trace.merged():
        if record.lost:
            number = "" if record.lost == UNKNOWN else f"{record.lost} "
            yield f"{places[id(instance)]}CPU:{record.slot} [LOST {number}EVENTS]"
        yield formatters[id(instance)](record)


def _formatter(trace: Source, instance: Instance, where: str, shows: Memo[int, Show]) -> Callable[[Record], str]:
    """The function from a record of a trace array to its line."""

    def front_of(place: tuple[int, int]) -> str:
        tid, slot = place
        return where + front(escaped(trace.comm(tid)), tid, slot, "", NO_FLAGS)

    return line_formatter(front_of, shows.__getitem__, find_clock(instance.clock).in_ns)


def _show_of(trace: Source, addresses: Addresses, number: int) -> Show:
    """The formatter of the events of a type, for the text after the time."""
    event = trace.formats.get(number)
    if event is None:
        return compiled([f"Unknown type {number}"])
    if _has_text(event):
        return _print_of_text(trace, event, addresses)
    if event.group == "ftrace" and event.name in _OWN:
        return _OWN[event.name](event, addresses)
    return printed(event, addresses)


def _has_text(event: EventFormat) -> bool:
    return event.group == "ftrace" and event.name in ("bprint", "bputs")


def _function(event: EventFormat, addresses: Addresses) -> Show:
    ip, parent = (address_of(event, name, addresses.name) for name in ("ip", "parent_ip"))
    return compiled([ip, " <-", parent])


def _print(event: EventFormat, addresses: Addresses) -> Show:
    names: Memo[int, str] = Memo(lambda ip: addresses.name[ip] if ip else "tracing_mark_write")
    return compiled([address_of(event, "ip", names), ": ", lambda data: escaped(text(data[16:]).rstrip("\n"))])


def _print_of_text(trace: Source, event: EventFormat, addresses: Addresses) -> Show:
    """The formatter of records that trace_printk and trace_puts of programs have made."""
    return compiled([address_of(event, "ip", addresses.name), ": ", lambda data: _text_of(trace, event, data)])


def _text_of(trace: Source, event: EventFormat, data: bytes) -> str:
    """What trace_printk or trace_puts of a program has printed."""
    form = trace.text(_WORD.unpack_from(data, _TEXT)[0])
    shown = print_arguments(form, data[_ARGUMENTS:], trace.symbols.describe) if event.name == "bprint" else form
    return escaped(shown.rstrip("\n"))


def _stack(event: EventFormat, addresses: Addresses) -> Show:
    name = "<user stack trace>" if event.name == "user_stack" else "<stack trace>"

    def show(data: bytes) -> str:
        callers = [address for address in event.addresses("caller", data) if address]
        return "\n".join([name, *(f" => {_frame(addresses, address)}" for address in callers)])

    return show


def _frame(addresses: Addresses, address: int) -> str:
    return "[FTRACE TRAMPOLINE]" if address == FTRACE_TRAMPOLINE_MARKER else addresses.with_offset[address]


_OWN: dict[str, Callable[[EventFormat, Addresses], Show]] = {
    "function": _function,
    "print": _print,
    "kernel_stack": _stack,
    "user_stack": _stack,
}


def objects(trace: Source) -> Iterator[dict[str, Any]]:
    """An object for each record, in order of time: event, time, thread, fields by name, and what trace_printk has printed."""
    for instance, record in trace.merged():
        tid = record.common.pid
        event = trace.formats.get(record.common.type)
        name = {"event": event.name, "group": event.group} if event else {"event": None, "type": record.common.type}
        common = {"time_ns": record.stamp, "cpu": record.slot, "tid": tid, "comm": trace.comm(tid), "lost": record.lost}
        where = {"instance": instance.name} if instance.name else {}
        printed_text = {"text": _text_of(trace, event, record.data)} if event and _has_text(event) else {}
        yield name | where | common | {"fields": event.values(record.data) if event else {}} | printed_text
