"""Decoding of sub-buffers: pure functions from bytes to events, as objects or as numpy arrays.

An array is a view of a copied sub-buffer, without a Python object for each event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.hit.ring_buffer.layout import (
    COMMIT_MASK,
    DATA_TYPE_MAX,
    DELTA_BITS,
    HEADER,
    MISSED_EVENTS,
    MISSED_STORED,
    PADDING,
    SMALL_DATA,
    TIME_EXTEND,
    TIME_STAMP,
    TIME_STAMP_BITS,
)

if TYPE_CHECKING:
    import numpy


_HEAD = struct.Struct("<QQ")
_WORDS = struct.Struct("<II")
_WORD = struct.Struct("<I")
_COMMON = struct.Struct("<HBBi")
_STAMP_LOW = (1 << TIME_STAMP_BITS) - 1


class Event(NamedTuple):
    """An event of a sub-buffer."""

    stamp: int
    """In units of the clock."""
    offset: int
    """Offset of its data in the sub-buffer, in bytes."""
    size: int
    """Bytes of data, rounded up to 4."""


class Page(NamedTuple):
    """A copy of a sub-buffer, with its metadata."""

    data: bytes
    """The bytes, as from trace_pipe_raw, but without the flags of missing events."""
    first: int
    """Number of events that the slot had written before."""
    skip: int
    """Number of events at its beginning that have been consumed."""
    lost: int
    """Number of events that the slot had dropped before."""
    sequence: int
    number: int
    """Of its first page, in the memory file."""

    @property
    def events(self) -> Iterator[Event]:
        """The events that have not been consumed, oldest first."""
        for number, event in enumerate(decode(self.data)):
            if number >= self.skip:
                yield event


class Common(NamedTuple):
    """The common fields, which precede every event's own."""

    type: int
    flags: int
    preempt_count: int
    pid: int


def common(data: bytes | memoryview, offset: int = 0) -> Common:
    """The common fields of an event."""
    return Common(*_COMMON.unpack_from(data, offset))


def decode(data: bytes | memoryview, after: Event | None = None) -> Iterator[Event]:
    """The events of a sub-buffer, or those after one of them. Padding is skipped, but its time delta counts.

    Raises ValueError for damaged data.
    """
    return map(Event._make, spans(data, after))


def spans(data: bytes | memoryview, after: Event | None = None) -> Iterator[tuple[int, int, int]]:
    """The same as plain tuples. Small events, which most are, take few steps: a reader has millions of them."""
    stamp, word = _HEAD.unpack_from(data)
    at, end = HEADER, HEADER + (word & COMMIT_MASK)
    if end > len(data):
        raise _damaged(HEADER, f"{end - HEADER} bytes of events in {len(data)} bytes")
    if after is not None:
        at, stamp = after.offset + after.size, after.stamp
    words = memoryview(data)[: end & -4].cast("I")
    while at < end:
        while not at & 3 and at + 4 <= end:
            head = words[at >> 2]
            size = (head & 31) << 2
            if not 0 < size <= SMALL_DATA or at + 4 + size > end:
                break
            stamp += head >> 5
            yield stamp, at + 4, size
            at += 4 + size
        if at >= end:
            return
        head, following = _words(data, at, end)
        kind, delta = head & 31, head >> 5
        if kind == TIME_STAMP:
            stamp = absolute_stamp(stamp, delta | following << DELTA_BITS)
            at += 8
        elif kind == TIME_EXTEND:
            stamp += delta | following << DELTA_BITS
            at += 8
        else:
            if kind == PADDING and delta == 0:
                return
            stamp += delta
            start = at + 4 if kind and kind != PADDING else at + 8
            size = kind * 4 if kind and kind != PADDING else following - 4
            if size < 0 or start + size > end:
                raise _damaged(at, f"an event of {size} bytes, where {end - start} are left")
            if kind != PADDING:
                yield stamp, start, size
            at = start + size


def _words(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """The first word of an event and the word after it, which is 0 at the end of the data."""
    if at + _WORDS.size <= end:
        return _WORDS.unpack_from(data, at)
    if at + _WORD.size > end:
        raise _damaged(at, f"{end - at} bytes of an event")
    return _WORD.unpack_from(data, at)[0], 0


def _damaged(at: int, what: str) -> ValueError:
    return ValueError(f"damaged sub-buffer: {what} at {at}")


def absolute_stamp(before: int, low: int) -> int:
    """Complete a time stamp of which only the low 59 bits are known. `before`: a time stamp that is not later."""
    stamp = before & ~_STAMP_LOW | low
    return stamp + _STAMP_LOW + 1 if stamp < before else stamp


def count(data: bytes | memoryview) -> int:
    """Number of events in a sub-buffer."""
    return sum(1 for _ in spans(data))


def size_of_rest(page: Page) -> int:
    """Bytes of a sub-buffer from the first event that has not been consumed."""
    used: int = HEADER + (_HEAD.unpack_from(page.data)[1] & COMMIT_MASK)
    return used - _start_of(page.data, page.skip)


def _start_of(data: bytes, number: int) -> int:
    """Offset of an event, or of the time stamp before it; the end of the data if there are fewer events."""
    at = HEADER
    for index, event in enumerate(decode(data)):
        if index == number:
            return at
        at = event.offset + event.size
    return at


def marked(data: bytes, lost: int) -> bytes:
    """Mark in a sub-buffer's commit word that `lost` events are missing before it, with their number if there is space."""
    if not lost:
        return data
    stamp, word = _HEAD.unpack_from(data)
    end = HEADER + (word & COMMIT_MASK)
    tail = data[end:]
    if len(tail) >= 8:
        word |= MISSED_STORED
        tail = struct.pack("<Q", lost) + data[end + 8 :]
    return _HEAD.pack(stamp, word | MISSED_EVENTS) + data[HEADER:end] + tail


def without_first(data: bytes, skip: int) -> bytes:
    """Remove the first `skip` events of a sub-buffer. The result has the same size."""
    if not skip:
        return data
    events = list(decode(data))
    word = _HEAD.unpack_from(data)[1]
    if skip >= len(events):
        return _HEAD.pack(events[-1].stamp if events else 0, 0).ljust(len(data), b"\0")
    event = events[skip]
    start = event.offset - 4
    if not _WORD.unpack_from(data, start)[0] & 31 or event.size > 112:
        start -= 4
    head = _WORD.unpack_from(data, start)[0] & 31
    body = _WORD.pack(head) + data[start + 4 : HEADER + (word & COMMIT_MASK)]
    return (_HEAD.pack(event.stamp, len(body)) + body).ljust(len(data), b"\0")


class Block(NamedTuple):
    """Consecutive events of one type in one slot."""

    slot: int
    stamps: numpy.ndarray[Any, Any]
    """u64, in units of the buffer's clock."""
    events: numpy.ndarray[Any, Any]
    """A structured array with one element for each event: a view of the sub-buffer's copy."""


def blocks(page: Page, slot: int, type_id: int, dtype: Any) -> Iterator[Block]:
    """The events of a type in a sub-buffer, oldest first; consecutive events at equal distances in one array.

    `dtype` describes an event from its common fields on. Raises ModuleNotFoundError without numpy, ValueError for a dtype that
    is longer than an event.
    """
    try:
        import numpy
    except ModuleNotFoundError:
        raise ModuleNotFoundError("arrays of events need numpy: pip install fprobe[arrays]") from None
    layout = numpy.dtype(dtype)
    plain = _uniform(page, type_id, layout)
    if plain is not None:
        yield Block(slot, *plain)
        return
    for run in _runs([event for event in page.events if common(page.data, event.offset).type == type_id]):
        if layout.itemsize > run[0].size:
            raise ValueError(f"the dtype has {layout.itemsize} bytes; an event of type {type_id} has {run[0].size}")
        step = run[1].offset - run[0].offset if len(run) > 1 else run[0].size
        stamps = numpy.array([event.stamp for event in run], numpy.uint64)
        yield Block(slot, stamps, numpy.ndarray(len(run), layout, page.data, run[0].offset, (step,)))


def _uniform(page: Page, type_id: int, layout: Any) -> Any:
    """Stamps and events of a sub-buffer that contains only small events of one length and type; None for another one."""
    import numpy

    used = int.from_bytes(page.data[8:16], "little") & COMMIT_MASK
    first = page.data[HEADER] & 31 if used else 0
    size = 4 + 4 * first
    if page.skip or not 0 < first <= DATA_TYPE_MAX or used % size or layout.itemsize > size - 4:
        return None
    heads = numpy.ndarray(used // size, numpy.uint32, page.data, HEADER, (size,))
    types = numpy.ndarray(used // size, numpy.uint16, page.data, HEADER + 4, (size,))
    if (heads & 31 != first).any() or (types != type_id).any() or first >= TIME_EXTEND:
        return None
    stamps = numpy.cumsum(heads >> 5, dtype=numpy.uint64) + numpy.uint64(int.from_bytes(page.data[:8], "little"))
    return stamps, numpy.ndarray(used // size, layout, page.data, HEADER + 4, (size,))


def _runs(events: list[Event]) -> Iterator[list[Event]]:
    """Split events into runs of one size at equal distances."""
    run: list[Event] = []
    for event in events:
        step = event.offset - run[-1].offset if run else 0
        if run and (event.size != run[0].size or (len(run) > 1 and step != run[1].offset - run[0].offset)):
            yield run
            run = []
        run.append(event)
    if run:
        yield run
