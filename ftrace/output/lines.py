"""Records to lines: print_trace_line() of kernel/trace/trace.c."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ftrace.events.builtin import PRINT
from ftrace.events.registry import TraceEvent
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.output.context import binary_context, context, hex_context, raw_context
from ftrace.output.events import events_by_id, printers, text_of
from ftrace.output.options import TraceOptions
from ftrace.ring_buffer.reader import Record

_PRINT_TEXT = 16
"""Where the text of a print record begins."""


class LineFormat:
    """How records are shown: the options, and the clock's units. It knows the events that there are when it is made."""

    def __init__(self, options: TraceOptions, in_ns: bool) -> None:
        self._options, self._in_ns = options, in_ns
        self._events = events_by_id()
        self._comm = cache(saved_cmdlines.find)
        modes: dict[str, Callable[[Record, TraceEvent], str]] = {
            "bin": self._binary,
            "hex": self._hex,
            "raw": self._raw,
        }
        self._show = next((show for name, show in modes.items() if options[name]), self._plain)

    def line(self, record: Record) -> str:
        """The text of a record, with what was lost just before it."""
        lost = f"CPU:{record.slot} [LOST {record.lost} EVENTS]\n" if record.lost else ""
        number = record.common.type
        event = self._events.get(number)
        if event is None:
            return f"{lost}{self._context(record)}Unknown type {number}\n"
        if event is PRINT and self._options["printk-msg-only"]:
            return lost + text_of(record.data[_PRINT_TEXT:])
        return lost + self._show(record, event)

    def _context(self, record: Record) -> str:
        if not self._options["context-info"]:
            return ""
        return context(record, self._comm(record.common.pid), self._options, self._in_ns)

    def _plain(self, record: Record, event: TraceEvent) -> str:
        kind = printers(event)
        show = kind.fields if self._options["fields"] else kind.trace
        return self._context(record) + show(event, record.data, self._options)

    def _raw(self, record: Record, event: TraceEvent) -> str:
        front = raw_context(record) if self._options["context-info"] else ""
        return front + printers(event).raw(event, record.data, self._options)

    def _hex(self, record: Record, event: TraceEvent) -> str:
        front = hex_context(record) if self._options["context-info"] else ""
        return front + printers(event).hex(event, record.data, self._options) + "\n"

    def _binary(self, record: Record, event: TraceEvent) -> str:
        front = binary_context(record) if self._options["context-info"] else b""
        return front.decode("utf-8", "surrogateescape") + f"type: {event.id}\n"
