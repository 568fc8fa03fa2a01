"""Records to lines: print_trace_line() of kernel/trace/trace.c."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from ftrace.ring_buffer.formatters import Memo, Show, line_formatter
from ftrace.ring_buffer.reader import Record
from ftrace.tracing.events.builtin import FUNC_REPEATS, PRINTS, RAW_DATA
from ftrace.tracing.events.registry import TraceEvent
from ftrace.tracing.instances.cmdlines import SavedTgids, saved_cmdlines
from ftrace.tracing.instances.options import Options
from ftrace.tracing.output.context import (
    NO_FLAGS,
    LatencyTime,
    binary_context,
    front,
    hex_context,
    latency_context,
    raw_context,
    timestamp,
)
from ftrace.tracing.output.events import events_by_id, printed_text, printers

_TRACE_SEQ = 8155
"""Characters that fit a struct trace_seq."""
_A_BYTE = 3
"""Characters of each byte of a raw marker."""
_REPEATS = struct.Struct("<24xHHI")


def lost_text(record: Record) -> str:
    """The line about events that were lost just before a record; '' if none were."""
    return f"CPU:{record.slot} [LOST {record.lost} EVENTS]\n" if record.lost else ""


def fitted(line: str) -> str:
    """The line of a raw marker, without the bytes and the newline that are too much for a struct trace_seq."""
    if len(line) <= _TRACE_SEQ:
        return line
    body = line.removesuffix("\n")
    return body[: len(body) - max(-(-(len(body) - _TRACE_SEQ) // _A_BYTE), 0) * _A_BYTE]


class LineFormat:
    """Formats records according to the options and the clock. It knows the events that exist when it is made.

    `start`: when the buffer was emptied, for latency-format. `annotates`: whether a line marks the first record of each slot.
    """

    def __init__(
        self, options: Options, in_ns: bool, tgids: SavedTgids, start: int = 0, annotates: bool = False
    ) -> None:
        self._options, self._in_ns, self._tgids = options, in_ns, tgids
        self._latency, self._annotates = LatencyTime(start, in_ns), annotates
        self._events = events_by_id()
        self.comm = cache(saved_cmdlines.find)
        """comm(tid): a thread's name."""
        self.looks_ahead = options["latency-format"]
        """Whether the text of a record depends on the next one."""
        modes: dict[str, Callable[[Record, TraceEvent], str]] = {
            "bin": self._binary,
            "hex": self._hex,
            "raw": self._raw,
        }
        self._show = next((show for name, show in modes.items() if options[name]), None)
        self._shows = Memo(self._made)
        self._line = line_formatter(self._front, self._usual, in_ns, self.text)

    def lines(self, records: Iterable[Record]) -> Iterator[str]:
        """The text of each record, preceded by a line about lost events, if there were any."""
        seen: set[int] = set()
        if self._tgids.is_saving:
            self._tgids.see(records := list(records))
        for record, text in self._texts(records):
            if record.lost or record.slot not in seen:
                yield self._started(record, seen) + lost_text(record) + text
            else:
                yield text

    def _texts(self, records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
        if self._show is None and self._options["context-info"] and not (self.looks_ahead or self._options["fields"]):
            return ((record, self._line(record)) for record in records)
        pairs = enumerate(_with_next(records))
        return ((record, self.text(record, following, index)) for index, (record, following) in pairs)

    def _front(self, place: tuple[int, int]) -> str:
        tid, slot = place
        tgid = f"{self._tgids.column(tid)} " if self._options["record-tgid"] else ""
        return front(self.comm(tid), tid, slot, tgid, NO_FLAGS if self._options["irq-info"] else "")

    def _usual(self, number: int) -> Show | None:
        """The formatter of an event; None if its text depends on more than the record's bytes."""
        event = self._events.get(number)
        is_usual = event is not None and event not in (*PRINTS, RAW_DATA, FUNC_REPEATS)
        return self._shows[number] if is_usual else None

    def _made(self, number: int) -> Show:
        event = self._events[number]
        return printers(event).trace(event, self._options)

    def _started(self, record: Record, seen: set[int]) -> str:
        """With `annotates`, a line before the first record of each slot but the first slot: test_cpu_buff_start()."""
        is_first = bool(seen) and record.slot not in seen
        seen.add(record.slot)
        return f"##### CPU {record.slot} buffer started ####\n" if is_first and self._annotates else ""

    def text(self, record: Record, following: Record | None = None, index: int = 0) -> str:
        """The text of one record. `following`: the next record, of any slot. `index`: the number of records shown before."""
        number = record.common.type
        event = self._events.get(number)
        if event is None:
            return f"{self._context(record, following, index)}Unknown type {number}\n"
        if event in PRINTS and self._options["printk-msg-only"] and self._options["trace_printk"]:
            return printed_text(event, record.data)
        text = self._show(record, event) if self._show else self._plain(record, event, following, index)
        return fitted(text) if event is RAW_DATA else text

    def event_text(self, record: Record) -> str:
        """The text of its event alone; for a marker or a trace_printk, the text that was written."""
        event = self._events.get(record.common.type)
        if event is None:
            return f"Unknown type {record.common.type}\n"
        if event in PRINTS:
            return printed_text(event, record.data)
        return self._shows[event.id](record.data)

    def _context(self, record: Record, following: Record | None, index: int) -> str:
        if not self._options["context-info"]:
            return ""
        tid = record.common.pid
        if self._options["latency-format"]:
            number = index if self._options["verbose"] else None
            return latency_context(record, following, self.comm(tid), self._latency, number)
        return f"{self._front((tid, record.slot))}{timestamp(record.stamp, self._in_ns)}: "

    def _plain(self, record: Record, event: TraceEvent, following: Record | None, index: int) -> str:
        if self._options["fields"]:
            text = printers(event).fields(event, record.data, self._options)
        else:
            text = self._shows[event.id](record.data)
        if event is FUNC_REPEATS:
            text = f"{text[:-1]} {self._repeats(record)}\n"
        return self._context(record, following, index) + text

    def _repeats(self, record: Record) -> str:
        """How often a call was repeated, and the time of the last repetition."""
        count, top, bottom = _REPEATS.unpack_from(record.data)
        last = timestamp(record.stamp - (top << 32 | bottom), self._in_ns)
        return f"(repeats: {count}, last_ts: {last})"

    def _raw(self, record: Record, event: TraceEvent) -> str:
        front = raw_context(record) if self._options["context-info"] else ""
        return front + printers(event).raw(event, record.data, self._options)

    def _hex(self, record: Record, event: TraceEvent) -> str:
        front = hex_context(record) if self._options["context-info"] else ""
        return front + printers(event).hex(event, record.data, self._options) + "\n"

    def _binary(self, record: Record, event: TraceEvent) -> str:
        front = binary_context(record) if self._options["context-info"] else b""
        return front.decode("utf-8", "surrogateescape") + printers(event).binary(event, record.data, self._options)


def _with_next(records: Iterable[Record]) -> Iterator[tuple[Record, Record | None]]:
    before = None
    for record in records:
        if before is not None:
            yield before, record
        before = record
    if before is not None:
        yield before, None
