"""Readers of a ring of this process, consuming or not: of records in order of time, of whole sub-buffers, of new records only."""

from __future__ import annotations

import ctypes
import heapq
import itertools
import math
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.core.runtime import runtime
from ftrace.hit.ring_buffer.layout import PAGE_SHIFT, PAGE_SIZE
from ftrace.hit.ring_buffer.records import CONSUMED_MASK, ENTRY_MASK, OFFSET_BITS, PAGE_BITS, PAGE_MASK
from ftrace.ring_buffer import pages
from ftrace.ring_buffer.arena import Rings, Slots, slot_number
from ftrace.ring_buffer.pages import Common, Event, Page, spans
from ftrace.ring_buffer.staging import BATCH, Staging
from ftrace.ring_buffer.view import DROPPED, RingView
from sandbox.process.writing import write_all
from sandbox.threads.tasks import FREE

if TYPE_CHECKING:
    from ftrace.ring_buffer.arena import Rings, Slots, slot_number
    from ftrace.ring_buffer.pages import Page


_BY_TIME = attrgetter("stamp", "slot")
_TRIES = 1000
RECORD: Any = tuple.__new__
"""Makes a Record of a tuple, in a third of the time."""
_U32 = struct.Struct("<I")
_COMMIT_HIGH = 12
"""Offset of the upper half of a sub-buffer's commit word."""


class Record(NamedTuple):
    """A recorded event."""

    stamp: int
    """In units of the buffer's clock."""
    slot: int
    """Slot of the thread that recorded it: the N of per_cpu/cpuN."""
    lost: int
    """Number of events that the slot lost just before it."""
    data: bytes
    """The fields, starting with the common ones, padded to 4 bytes."""

    @property
    def common(self) -> Common:
        """The common fields: event type and thread."""
        return pages.common(self.data)


class Stats(NamedTuple):
    """The statistics of a slot, as in per_cpu/cpuN/stats. Times are in units of the clock."""

    entries: int
    """Events that can be read."""
    overrun: int
    """Events that were overwritten before they were consumed."""
    commit_overrun: int
    """Events lost because the sub-buffer to be overwritten contained a record in progress."""
    bytes: int
    """Bytes of the events that can be read, including time stamps and padding."""
    oldest: int
    """Time of the oldest event that can be read; 0 if there is none."""
    now: int
    dropped: int
    """Events lost for other reasons: no space, a page switch in progress, an unfinished record, or too many interruptions."""
    read: int
    """Events that were consumed."""


def record_of(page: Page, event: Event, slot: int, lost: int = 0) -> Record:
    """The record of an event in a copied sub-buffer."""
    return Record(event.stamp, slot, lost, page.data[event.offset : event.offset + event.size])


def records(ring: Rings, slot: Slots = None) -> Iterator[Record]:
    """The records of a ring, or of one slot, in order of time. Nothing is consumed."""
    return Copy(ring, slot).records()


class Copy:
    """A copy of a ring's sub-buffers, or of those of one slot: what is read is as it was when the copy was made."""

    def __init__(self, ring: Rings, slot: Slots = None) -> None:
        self._pages = {each: ring.view.pages(each) for each in ring.chosen(slot)}
        self.overrun = overrun(ring, slot)
        """Number of events that were overwritten before they were consumed."""

    @property
    def entries(self) -> int:
        """Number of records."""
        return sum(pages.count(page.data) - page.skip for copies in self._pages.values() for page in copies)

    def records(self) -> Iterator[Record]:
        """The records in order of time."""
        return in_order(of_slot(slot, copies) for slot, copies in self._pages.items())


def in_order(sources: Iterable[Iterator[Record]]) -> Iterator[Record]:
    """The records of several slots in order of time. No two are equal up to the slot."""
    return heapq.merge(*sources)


def merged(sources: Sequence[tuple[int, Iterator[Record]]]) -> Iterator[tuple[int, Record]]:
    """The records of several rings, given by their addresses, in order of time, with the address of each record's ring."""
    pairs = (zip(itertools.repeat(address), found, strict=False) for address, found in sources)
    return heapq.merge(*pairs, key=lambda pair: _BY_TIME(pair[1]))


def of_slot(slot: int, copies: list[Page]) -> Iterator[Record]:
    """The records in copies of a slot's sub-buffers, oldest first."""
    expected, dropped = None, 0
    for page in copies:
        lost = 0 if expected is None else page.first - expected + page.lost - dropped
        data, number = page.data, 0
        for stamp, start, size in spans(data):
            if number >= page.skip:
                yield RECORD(Record, (stamp, slot, lost, data[start : start + size]))
                lost = 0
            number += 1
        expected, dropped = page.first + number, page.lost


class SlotReader:
    """Consumes the events of one slot."""

    def __init__(self, ring: Rings, slot: int) -> None:
        self._ring, self.slot, self._view = ring, slot_number(slot), ring.view
        self._head = 0
        self._page: Page | None = None
        self._events: list[Event] = []

    def peek(self) -> Record | None:
        """The oldest event that has not been consumed; None if there is none."""
        for _ in range(_TRIES):
            if self._page is None or self._head != self._view.slot_word(self.slot, "head"):
                self._load()
            if self._page is None and not self._view.slot_word(self.slot, "sequence"):
                return None
            if self._page is not None and self._consumed() < len(self._events):
                done = self._consumed()
                return record_of(self._page, self._events[done], self.slot, self._lost(self._page, done))
            complete = self._is_complete()  # if it is, no more come after this
            self._load()
            if self._page is not None and self._consumed() == len(self._events):
                if not complete:
                    return None
                runtime().image.call("ring_take_oldest", self._ring.address, self._address, self._head)
        return None

    def run(self, before: tuple[int, int] | None, limit: int) -> list[Record]:
        """Consume events of the loaded sub-buffer, at most `limit`: the one that `peek` has returned, and later ones.

        They are earlier than `before`, a time and a slot. Returns none if they have been overwritten.
        """
        assert self._page is not None
        done = self._consumed()
        found = [record_of(self._page, each, self.slot) for each in self._events[done : done + limit]]
        count = len(found) if before is None else bisect_left(found, before)
        found[0] = found[0]._replace(lost=self._lost(self._page, done))
        after = self._head + (count << PAGE_BITS)
        if not runtime().image.call("ring_consume", self._address, self._head, after) & 1:
            return []
        self._head = after
        self._set_consumed(self._page, done + count, count)
        return found[:count]

    def take(self) -> tuple[Page, int] | None:
        """Consume the oldest sub-buffer that has events. Returns a copy and the number of events lost before it, or None."""
        done, taken = self._try_to_take()
        while not done:
            done, taken = self._try_to_take()
        return taken

    def _try_to_take(self) -> tuple[bool, tuple[Page, int] | None]:
        """Whether the attempt decides, and what `take` returns. It does not if the sub-buffer is overwritten or has no events."""
        head = self._view.slot_word(self.slot, "head")
        number = head & PAGE_MASK
        complete = self._is_complete()
        page = self._view.copy(number, head >> PAGE_BITS & CONSUMED_MASK)
        if not self._view.slot_word(self.slot, "sequence"):
            return True, None
        if page is None:
            return False, None
        held = pages.count(page.data)
        if not complete and held == page.skip:
            return True, None
        after = (head & ~(CONSUMED_MASK << PAGE_BITS)) | held << PAGE_BITS
        image = runtime().image
        if complete:
            taken = image.call("ring_take_oldest", self._ring.address, self._address, head) & 1
        else:
            taken = image.call("ring_consume", self._address, head, after) & 1
        if not taken:
            return False, None
        lost = self._lost(page, page.skip)
        self._set_consumed(page, held, held - page.skip)
        return held > page.skip, (page, lost)

    def take_raw(self) -> bytes | None:
        """As `take`, but in the form of trace_pipe_raw: without events consumed earlier, and with lost events marked.

        Complete sub-buffers are copied by native code: a thread that records without a pause overwrites them faster than Python
        copies one.
        """
        memory = ctypes.create_string_buffer(PAGE_SIZE << self._ring.entry.order)
        while True:
            if self.drain(memory, 1):
                return memory.raw
            done, taken = self._try_to_take()
            if done:
                return _marked(*taken) if taken else None

    def drain(self, memory: Any, limit: int) -> int:
        """Consume up to `limit` complete sub-buffers into `memory`. Returns how many were consumed."""
        where = self._ring.address, self._address, ctypes.addressof(memory), limit
        return int(runtime().image.call_and_wait("ring_drain", *where))

    def trim(self, count: int) -> None:
        """Delete the oldest sub-buffers until there are at most `count`."""
        while self._view.slot_word(self.slot, "pages") > count and self._is_complete():
            head = self._view.slot_word(self.slot, "head")
            first, after = (self._view.meta_word(page, "first") for page in self._oldest_two(head))
            if runtime().image.call("ring_take_oldest", self._ring.address, self._address, head) & 1:
                given_up = after - first - (head >> PAGE_BITS & CONSUMED_MASK)
                self._view.set_slot_word(self.slot, "trimmed", self._view.slot_word(self.slot, "trimmed") + given_up)

    def _oldest_two(self, head: int) -> tuple[int, int]:
        page = head & PAGE_MASK
        return page, self._view.meta_word(page, "next") - 1

    @property
    def owner(self) -> int:
        """The id of the thread that owns the slot."""
        return self._view.slot_word(self.slot, "owner") & 0xFFFF_FFFF

    @property
    def _address(self) -> int:
        return self._ring.slot_address(self.slot)

    def _consumed(self) -> int:
        return self._head >> PAGE_BITS & CONSUMED_MASK

    def _is_complete(self) -> bool:
        """Whether the oldest sub-buffer has been published completely."""
        head = self._view.slot_word(self.slot, "head")
        sequence = self._view.meta_word(head & PAGE_MASK, "sequence")
        return 0 < sequence < self._view.slot_word(self.slot, "commit_sequence")

    def _load(self) -> None:
        self._page = None
        if self._view.slot_word(self.slot, "sequence"):
            self._head = self._view.slot_word(self.slot, "head")
            self._page = self._view.copy(self._head & PAGE_MASK, self._consumed())
            self._events = list(pages.decode(self._page.data)) if self._page else []

    def _lost(self, page: Page, done: int) -> int:
        """Number of events lost since the last one that was consumed."""
        overwritten = page.first + done - self._view.slot_word(self.slot, "read")
        return overwritten + page.lost - self._view.slot_word(self.slot, "reported")

    def _set_consumed(self, page: Page, done: int, consumed: int) -> None:
        self._view.set_slot_word(self.slot, "consumed", self._view.slot_word(self.slot, "consumed") + consumed)
        self._view.set_slot_word(self.slot, "read", page.first + done)
        self._view.set_slot_word(self.slot, "reported", page.lost)


class Reader:
    """Consumes a ring's events."""

    def __init__(self, ring: Rings) -> None:
        self._ring = ring
        self._slots: dict[int, SlotReader] = {}

    def consume(self, slot: Slots = None) -> Iterator[Record]:
        """Consume the events in order of time. Only those that the iterator has returned are consumed."""
        while taken := self.consume_some(1, slot):
            yield from taken

    def consume_some(self, limit: int, slot: Slots = None) -> list[Record]:
        """Consume the next events in order of time, at least one unless there is none, and at most `limit`."""
        while True:
            found = ((record[:2], each) for each in self._readers(slot) if (record := each.peek()) is not None)
            oldest, *others = sorted(found, key=itemgetter(0)) or (None,)
            if oldest is None:
                self.reap()
                return []
            if taken := oldest[1].run(others[0][0] if others else None, limit):
                return taken

    def raw_pages(self, slot: Slots = None) -> Iterator[tuple[int, bytes]]:
        """Consume all sub-buffers: slot and bytes of each, with lost events marked. Later arrivals are ignored, as by `drain`."""
        memory = ctypes.create_string_buffer(BATCH * (PAGE_SIZE << self._ring.entry.order))
        for each in self._readers(slot):
            due = self._ring.view.slot_word(each.slot, "pages") + 1
            while due > 0 and (taken := self._drained(each, memory, min(due, BATCH))):
                yield from ((each.slot, page) for page in taken)
                due -= len(taken)
        self.reap()

    def drain(self, descriptor: int, slot: Slots = None, mark: int = 0, staging: Staging | None = None) -> int:
        """Write the complete sub-buffers of all slots, or one, to a file, and consume them; returns the bytes written.

        `mark`: the upper half of each one's commit word; `staging`: where they are in between, with a mark that is not 0.

        Sub-buffers that are still being written remain. No more are taken from a slot than it has at first: a thread that records
        faster than the file is written must not keep the caller here. Raises OSError; what was consumed but not written is lost.
        """
        size, written = PAGE_SIZE << self._ring.entry.order, 0
        memory = ctypes.create_string_buffer(BATCH * size) if staging is None else staging.emptied(mark, size)
        for each in self._readers(slot):
            due = self._ring.view.slot_word(each.slot, "pages")
            while count := each.drain(memory, min(due, BATCH)):
                for number in range(count if mark else 0):
                    _U32.pack_into(memory, number * size + _COMMIT_HIGH, mark)
                write_all(descriptor, memoryview(memory)[: count * size])
                written += count * size
                due -= count
                if staging is not None:
                    staging.emptied(mark, size, count)
        return written

    def trim(self, count: int, slot: Slots = None) -> None:
        """Delete the oldest sub-buffers of each slot, or of one, until it has at most `count`."""
        for each in self._readers(slot):
            each.trim(count)

    def reap(self) -> None:
        """Free the last sub-buffer of each thread that has ended and whose events have all been consumed."""
        readers = self._readers(None)
        tasks, image = runtime().tasks(), runtime().image
        for each in readers:
            if tasks[each.slot].state == FREE and each.peek() is None:
                image.call("ring_reap", self._ring.address, self._ring.slot_address(each.slot), each.owner)

    def _readers(self, slot: Slots) -> list[SlotReader]:
        return [self._slots.setdefault(each, SlotReader(self._ring, each)) for each in self._ring.chosen(slot)]

    def _drained(self, each: SlotReader, memory: Any, most: int) -> list[bytes]:
        """Consume the oldest sub-buffers: complete ones, or else one that was consumed in part, or is incomplete."""
        size, view = PAGE_SIZE << self._ring.entry.order, memoryview(memory)
        if count := each.drain(memory, most):
            return [bytes(view[index * size : (index + 1) * size]) for index in range(count)]
        page = each.take_raw()
        return [] if page is None else [page]


def _marked(page: Page, lost: int) -> bytes:
    return pages.marked(pages.without_first(page.data, page.skip), lost)


def stats(ring: Rings, slot: int, now: int) -> Stats:
    """The statistics of a slot."""
    copies = ring.view.pages(slot_number(slot))
    events = [event for page in copies for event in page.events]
    word = partial(ring.view.slot_word, slot)
    dropped = sum(map(word, DROPPED))
    return Stats(
        entries=len(events),
        overrun=overrun(ring, slot),
        commit_overrun=word("commit_overrun"),
        bytes=sum(pages.size_of_rest(page) for page in copies),
        oldest=events[0].stamp if events else 0,
        now=now,
        dropped=dropped,
        read=word("consumed"),
    )


def total(stats: Sequence[Stats], now: int) -> Stats:
    """The statistics of several slots together."""
    oldest = [each.oldest for each in stats if each.entries]
    sums = [sum(values) for values in zip(*(each for each in stats), strict=True)] or [0] * len(Stats._fields)
    return Stats(*sums)._replace(oldest=min(oldest, default=0), now=now)


def written(ring: Rings, slot: int) -> int:
    """Number of events written to a slot, including overwritten and consumed ones."""
    if not ring.view.slot_word(slot, "sequence"):
        return 0
    tail, page = ring.view.slot_word(slot, "tail"), ring.view.slot_word(slot, "current") >> PAGE_SHIFT
    return ring.view.meta_word(page, "first") + (tail >> OFFSET_BITS & ENTRY_MASK)


def overrun(ring: Rings, slot: Slots = None) -> int:
    """The number of events of a ring, or of one slot, that were overwritten before they were consumed."""
    return sum(ring.view.slot_word(each, field) for each in ring.chosen(slot) for field in ("overrun", "trimmed"))


class _Position(NamedTuple):
    """How far a slot has been followed."""

    sequence: int = 0
    """Sequence number of the sub-buffer of the last record."""
    page: int | None = None
    """Number of its first page."""
    last: Event | None = None
    """The last record there."""
    number: int = 0
    """Number of the next event, counted from the slot's first."""
    dropped: int = 0
    """Number of events that the slot had dropped before that sub-buffer."""


class Follower:
    """The positions of a reader that consumes nothing, by slot. After the buffer is cleared, they start again."""

    def __init__(self) -> None:
        self._view: RingView | None = None
        self._positions: dict[int, _Position] = {}

    def take(self, view: RingView, slots: Iterable[int], until: float = math.inf) -> Iterator[Record]:
        """The records of these slots since the last call, by time, up to the stamp `until`.

        `lost`: how many of the slot are missing before a record. The iterator has to be exhausted before the next call.
        """
        if view is not self._view:
            self._view, self._positions = view, {}
        return in_order(self._of_slot(view, slot, until) for slot in slots)

    def _of_slot(self, view: RingView, slot: int, until: float) -> Iterator[Record]:
        if view.slot_word(slot, "sequence") < self._positions.get(slot, _Position()).sequence:
            del self._positions[slot]  # consumed to the end; another thread has the slot
        before = self._positions.get(slot, _Position())
        for page in view.pages(slot, before.sequence, before.page):
            yield from self._of_page(slot, page, until)

    def _of_page(self, slot: int, page: Page, until: float) -> Iterator[Record]:
        before = self._positions.get(slot, _Position())
        is_same = before.sequence == page.sequence
        number = before.number if is_same else page.first
        for event in pages.decode(page.data, before.last if is_same else None):
            if event.stamp > until:
                return
            lost = number - before.number + page.lost - before.dropped
            before = _Position(page.sequence, page.number, event, number + 1, page.lost)
            self._positions[slot] = before
            yield record_of(page, event, slot, lost)
            number += 1
