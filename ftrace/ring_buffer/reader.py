"""Readers of a ring in this process: records merged by time, consumed one by one or looked at, and sub-buffers in whole."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from ftrace.ring_buffer import pages
from ftrace.ring_buffer.arena import Rings
from ftrace.ring_buffer.pages import Common, Event, Page
from ftrace.ring_buffer.records import CONSUMED_MASK, PAGE_BITS, PAGE_MASK
from ftrace.runtime import runtime

_BY_TIME = attrgetter("stamp", "slot")


class Record(NamedTuple):
    """An event that was recorded."""

    stamp: int
    """In units of the buffer's clock."""
    slot: int
    """Of the thread that recorded it: what per_cpu/cpuN is to it."""
    lost: int
    """Events that the slot lost just before it."""
    data: bytes
    """Its fields, the common ones first, rounded up to 4 bytes."""

    @property
    def common(self) -> Common:
        """Its type, and who recorded it."""
        return pages.common(self.data)


def record_of(page: Page, event: Event, slot: int, lost: int = 0) -> Record:
    """A record of an event in a copied sub-buffer."""
    return Record(event.stamp, slot, lost, page.data[event.offset : event.offset + event.size])


def records(ring: Rings, slots: list[int] | None = None) -> Iterator[Record]:
    """What a ring holds, of all slots or some, merged by time. Nothing is consumed."""
    view = ring.view
    chosen = list(view.slots(ring.arena.slots_in_use)) if slots is None else slots
    return heapq.merge(*(_of_slot(slot, view.pages(slot)) for slot in chosen), key=_BY_TIME)


def _of_slot(slot: int, copies: list[Page]) -> Iterator[Record]:
    expected, dropped = None, 0
    for page in copies:
        lost = 0 if expected is None else page.first - expected + page.lost - dropped
        for event in page.events:
            yield record_of(page, event, slot, lost)
            lost = 0
        expected, dropped = page.first + pages.count(page.data), page.lost


class SlotReader:
    """Consumes the events of one slot."""

    def __init__(self, ring: Rings, slot: int) -> None:
        self._ring, self.slot, self._view = ring, slot, ring.view
        self._head = 0
        self._page: Page | None = None
        self._events: list[Event] = []

    def peek(self) -> Record | None:
        """The oldest event that was not consumed; None if there is none."""
        for _ in range(2):
            if self._page is not None and self._head == self._view.slot_word(self.slot, "head"):
                done = self._consumed()
                if done < len(self._events):
                    return record_of(self._page, self._events[done], self.slot, self._lost(self._page, done))
                if self._is_complete() and len(self._events) == pages.count(self._page.data):
                    self._next_page()
            self._load()
        return None

    def pop(self, record: Record) -> bool:
        """Consume what `peek` has returned. False: it was overwritten meanwhile."""
        assert self._page is not None
        after = self._head + (1 << PAGE_BITS)
        if not runtime().image.call("ring_consume", self._address, self._head, after) & 1:
            return False
        self._head = after
        self._told(self._page, self._consumed())
        return True

    def take(self) -> tuple[Page, int] | None:
        """Consume everything in the oldest sub-buffer that has events: a copy, and how many were lost before it."""
        while True:
            head = self._view.slot_word(self.slot, "head")
            number = head & PAGE_MASK
            complete = self._is_complete()
            page = self._view.copy(number, head >> PAGE_BITS & CONSUMED_MASK)
            if not self._view.slot_word(self.slot, "sequence"):
                return None
            if page is None:
                continue
            held = pages.count(page.data)
            if not complete and held == page.skip:
                return None
            after = (head & ~(CONSUMED_MASK << PAGE_BITS)) | held << PAGE_BITS
            image = runtime().image
            if complete:
                taken = image.call("ring_take_oldest", self._ring.address, self._address, head) & 1
            else:
                taken = image.call("ring_consume", self._address, head, after) & 1
            if taken:
                lost = self._lost(page, page.skip)
                self._told(page, held)
                if held > page.skip:
                    return page, lost

    @property
    def _address(self) -> int:
        return self._ring.slot_address(self.slot)

    def _consumed(self) -> int:
        return self._head >> PAGE_BITS & CONSUMED_MASK

    def _is_complete(self) -> bool:
        """Whether the oldest sub-buffer is published in whole."""
        head = self._view.slot_word(self.slot, "head")
        sequence = self._view.meta_word(head & PAGE_MASK, "sequence")
        return 0 < sequence < self._view.slot_word(self.slot, "commit_sequence")

    def _load(self) -> None:
        self._page = None
        if self._view.slot_word(self.slot, "sequence"):
            self._head = self._view.slot_word(self.slot, "head")
            self._page = self._view.copy(self._head & PAGE_MASK, self._consumed())
            self._events = list(pages.decode(self._page.data)) if self._page else []

    def _next_page(self) -> None:
        runtime().image.call("ring_take_oldest", self._ring.address, self._address, self._head)
        self._page = None

    def _lost(self, page: Page, done: int) -> int:
        """Events lost since the last one that was consumed."""
        overwritten = page.first + done - self._view.slot_word(self.slot, "read")
        return overwritten + page.lost - self._view.slot_word(self.slot, "reported")

    def _told(self, page: Page, done: int) -> None:
        self._view.set_slot_word(self.slot, "read", page.first + done)
        self._view.set_slot_word(self.slot, "reported", page.lost)


class Reader:
    """Consumes a ring's events, merged by time."""

    def __init__(self, ring: Rings) -> None:
        self._ring = ring
        self._slots: dict[int, SlotReader] = {}

    def __iter__(self) -> Iterator[Record]:
        """The events that are there now; it ends where there is none. What is not iterated over is not consumed."""
        while True:
            oldest = min(self._peeked(), key=lambda pair: _BY_TIME(pair[0]), default=None)
            if oldest is None:
                return
            record, reader = oldest
            if reader.pop(record):
                yield record

    def _peeked(self) -> Iterator[tuple[Record, SlotReader]]:
        for reader in self.slots():
            record = reader.peek()
            if record is not None:
                yield record, reader

    def slots(self) -> list[SlotReader]:
        """A reader for each slot that has been written to."""
        for slot in self._ring.view.slots(self._ring.arena.slots_in_use):
            self._slots.setdefault(slot, SlotReader(self._ring, slot))
        return list(self._slots.values())
