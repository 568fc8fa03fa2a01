"""Reading the records of calls that a process has written (ftrace.hit.call_records)."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator

from fprobe.run import session
from fprobe.run.launcher.call_events import CallEvents, Event
from fprobe.run.launcher.call_values import Values
from fprobe.run.launcher.probe_events import memory_file
from ftrace.hit.call_records import ENTRY
from ftrace.ring_buffer.reader import Record, of_slot
from ftrace.ring_buffer.view import RingView

_WORD = 8
_HEAD = struct.Struct("<HBBiQQII")
_ENTRY_WORDS, _RESULT_WORDS = struct.Struct("<6Q"), struct.Struct("<3Q")
_TARGET = struct.Struct("<Qq")
_VECTOR_BYTES = 128


def read_events(counts: int, parts: Iterable[int], leave_out: Collection[int] = ()) -> CallEvents:
    """The records of a process's threads in order of time, without those to `leave_out`. `parts`: the numbers of its parts."""
    events: list[Event] = []
    lost = 0
    for ring in filter(None, (ring_of(counts, number) for number in parts)):
        for slot in ring.slots():
            lost += ring.lost(slot)
            events += map(event_of, of_slot(slot, ring.pages(slot)))
    wanted = [event for event in events if event.thread not in leave_out]
    return CallEvents(sorted(wanted, key=lambda event: (event.time, event.thread)), lost)


def ring_of(counts: int, number: int) -> RingView | None:
    """The ring of a part; None if its process records no calls."""
    file = memory_file(counts, session.HEADER + number * session.PART + session.CALLS_AT)
    return RingView(file, 0, session.CALLS_ORDER) if file else None


def event_of(record: Record) -> Event:
    """The event of a record."""
    kind, _, _, thread, ip, value, place, layout = _HEAD.unpack_from(record.data)
    is_entry = kind == ENTRY
    values = _values(record.data, is_entry, value, layout) if layout else None
    return Event(record.stamp, thread, ip, place >> 1, is_entry, not place & 1, value, values)


def _values(data: bytes, is_entry: bool, ax: int, layout: int) -> Values:
    general = _ENTRY_WORDS if is_entry else _RESULT_WORDS
    words = general.unpack_from(data, _HEAD.size)
    at = _HEAD.size + general.size
    vectors = data[at : at + _VECTOR_BYTES * (layout >> 8 & 0xF)]
    at += len(vectors)
    stack = data[at : at + _WORD * (layout >> 12 & 0xFFF)]
    targets = tuple(_targets(data, at + len(stack), layout >> 24))
    return Values(words if is_entry else (ax, *words), vectors, stack, targets)


def _targets(data: bytes, at: int, count: int) -> Iterator[tuple[int, bytes | None]]:
    for _ in range(count):
        address, length = _TARGET.unpack_from(data, at)
        at += _TARGET.size
        yield address, data[at : at + length] if length >= 0 else None
        at += max(length, 0) + _WORD - 1 & -_WORD
