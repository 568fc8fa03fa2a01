"""Records of several slots as sub-buffers of one: for readers that know CPUs, and open a file for each."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ftrace.hit.ring_buffer.layout import (
    DELTA_BITS,
    HEADER,
    MISSED_EVENTS,
    MISSED_STORED,
    SMALL_DATA,
    TIME_EXTEND,
)
from ftrace.ring_buffer.reader import Record

_HEAD = struct.Struct("<QQ")
_WORD = struct.Struct("<I")
_WORDS = struct.Struct("<II")
_COUNT = struct.Struct("<Q")
_DELTA = (1 << DELTA_BITS) - 1


class Packer:
    """Makes sub-buffers of `size` bytes out of records in order of time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: Record | None = None
        """A record that did not fit the last one."""

    @property
    def is_empty(self) -> bool:
        """Whether no record waits for the next sub-buffer."""
        return self._held is None

    def page(self, records: Iterator[Record]) -> bytes | None:
        """The next sub-buffer, of as many records as there are and fit; None without any. Lost events are marked before them."""
        parts: list[bytes] = []
        used, first, last, lost = HEADER, 0, 0, 0
        while (record := self._held or next(records, None)) is not None:
            self._held = record
            if not parts:
                first = last = record.stamp
                lost = record.lost
            event = encoded(record.data, max(record.stamp - last, 0))
            if parts and (record.lost or used + len(event) > self._size):
                break
            parts.append(event)
            used += len(event)
            last, self._held = max(record.stamp, last), None
        return self._finished(b"".join(parts), first, lost) if parts else None

    def _finished(self, events: bytes, first: int, lost: int) -> bytes:
        commit, tail = len(events), b""
        if lost:
            commit |= MISSED_EVENTS
            if HEADER + len(events) + _COUNT.size <= self._size:
                commit |= MISSED_STORED
                tail = _COUNT.pack(lost)
        return (_HEAD.pack(first, commit) + events + tail).ljust(self._size, b"\0")


def encoded(data: bytes, delta: int) -> bytes:
    """An event of a sub-buffer, `delta` after the one before; a long time has an entry of its own."""
    extend = b""
    if delta > _DELTA:
        extend = _WORDS.pack(TIME_EXTEND | (delta & _DELTA) << 5, delta >> DELTA_BITS)
        delta = 0
    if len(data) <= SMALL_DATA:
        return extend + _WORD.pack(len(data) // 4 | delta << 5) + data
    return extend + _WORDS.pack(delta << 5, len(data) + 4) + data
