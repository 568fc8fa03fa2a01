"""Follows a buffer: returns each new record once, without consuming it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ftrace.ring_buffer import pages
from ftrace.ring_buffer.reader import Record, record_of

if TYPE_CHECKING:
    from ftrace.ring_buffer.arena import Rings
    from ftrace.ring_buffer.pages import Page

_BY_TIME = attrgetter("stamp", "slot")


class _Position(NamedTuple):
    """How far a slot has been followed."""

    sequence: int = 0
    """Sequence number of the sub-buffer of the last record."""
    number: int = 0
    """Number of the next event, counted from the slot's first."""
    dropped: int = 0
    """Number of events that the slot had dropped before that sub-buffer."""


class Follower:
    """The positions of a reader that consumes nothing, by slot. After the buffer is cleared, they start again."""

    def __init__(self) -> None:
        self._ring: Rings | None = None
        self._positions: dict[int, _Position] = {}

    def take(self, ring: Rings) -> list[Record]:
        """The records since the last call, in order of time. `lost`: number of events of the slot missing before the record."""
        if ring is not self._ring:
            self._ring, self._positions = ring, {}
        return list(heapq.merge(*(self._of_slot(ring, slot) for slot in ring.slots()), key=_BY_TIME))

    def _of_slot(self, ring: Rings, slot: int) -> Iterator[Record]:
        if ring.view.slot_word(slot, "sequence") < self._positions.get(slot, _Position()).sequence:
            del self._positions[slot]  # consumed to the end; another thread has the slot
        for page in ring.view.pages(slot, self._positions.get(slot, _Position()).sequence):
            yield from self._of_page(slot, page)

    def _of_page(self, slot: int, page: Page) -> Iterator[Record]:
        before = self._positions.get(slot, _Position())
        number = page.first
        for event in pages.decode(page.data):
            if number >= before.number:
                lost = number - before.number + page.lost - before.dropped
                before = self._positions[slot] = _Position(page.sequence, number + 1, page.lost)
                yield record_of(page, event, slot, lost)
            number += 1
