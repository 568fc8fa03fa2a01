"""Reads the slots of a ring in any memory file, also during writing or after the writer was killed. Consumes nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ftrace.hit.ring_buffer.layout import (
    COMMIT_MASK,
    DIRECTORY_ENTRY,
    HEADER,
    MAGIC,
    META_SIZE,
    PAGE_SHIFT,
    PAGE_SIZE,
    RINGS,
    SLOT_SIZE,
    SLOTS,
    Geometry,
)
from ftrace.hit.ring_buffer.records import CONSUMED_MASK, PAGE_BITS, PAGE_MASK, PageMeta, Slot
from ftrace.ring_buffer.pages import Page

_ENTRY = struct.Struct("<QQ32s64s")
_FILE = struct.Struct("<QQQ")
_TRIES = 64


class RingEntry(NamedTuple):
    """A ring's entry in the directory of a memory file."""

    number: int
    order: int
    clock: str
    name: str
    """Name of the instance; empty for the top-level buffer."""


class MemoryFile:
    """A mapped memory file: its geometry and its rings. Raises ValueError for a file that is not one or is cut off."""

    def __init__(self, view: memoryview) -> None:
        self.bytes = view
        magic, pages, self.pid = _FILE.unpack_from(view)
        if magic != MAGIC or len(view) < Geometry(pages).size:
            raise ValueError("this is not the memory file of a ring buffer, or it is truncated")
        self.geometry = Geometry(pages)
        self.words = view[: self.geometry.size].cast("Q")

    @staticmethod
    def write_header(view: memoryview, geometry: Geometry, pid: int) -> None:
        """Initialise a memory file that is all zeros. All its pages are free."""
        words = view.cast("Q")
        for index in range(geometry.bitmap >> 3, (geometry.bitmap >> 3) + geometry.words):
            words[index] = (1 << 64) - 1
        _FILE.pack_into(view, 0, MAGIC, geometry.pages, pid)

    def rings(self) -> list[RingEntry]:
        """The rings that exist."""
        found = []
        for number in range(RINGS):
            at = self.geometry.directory + number * DIRECTORY_ENTRY
            in_use, order, clock, name = _ENTRY.unpack_from(self.bytes, at)
            if in_use:
                texts = (text.rstrip(b"\0").decode() for text in (clock, name))
                found.append(RingEntry(number, order, *texts))
        return found

    def write_entry(self, ring: RingEntry) -> None:
        """Enter a ring in the directory."""
        values = (1, ring.order, ring.clock.encode(), ring.name.encode()[:64])
        _ENTRY.pack_into(self.bytes, self.geometry.directory + ring.number * DIRECTORY_ENTRY, *values)

    def erase_entry(self, number: int) -> None:
        """Remove a ring from the directory."""
        self.words[(self.geometry.directory + number * DIRECTORY_ENTRY) >> 3] = 0


DROPPED = ("dropped", "nested", "retried", "abandoned", "too_long")
"""Fields of a slot: numbers of events that were not written."""
_LOST = ("overrun", "trimmed", "commit_overrun", *DROPPED)


class RingView:
    """The slots of a ring in a memory file."""

    def __init__(self, file: MemoryFile, number: int, order: int) -> None:
        self.file = file
        self.order = order
        self._number = number
        self._slots = file.geometry.slots_of(number) >> 3
        self._metas = file.geometry.metas >> 3

    def slots(self, limit: int = SLOTS) -> Iterator[int]:
        """The slots below `limit` that have been written to."""
        step, first = SLOT_SIZE >> 3, self._slots + (Slot.offset("owner") >> 3)
        owners = self.file.words[first : first + limit * step : step].tolist()
        return (slot for slot, owner in enumerate(owners) if owner)

    def slot_word(self, slot: int, field: str) -> int:
        """A 64-bit field of a slot."""
        return self.file.words[self._slots + (slot * SLOT_SIZE + Slot.offset(field) >> 3)]

    def lost(self, slot: int) -> int:
        """Number of a slot's events that cannot be read: overwritten before they were consumed, or never written."""
        return sum(self.slot_word(slot, field) for field in _LOST)

    def set_slot_word(self, slot: int, field: str, value: int) -> None:
        """Write a field that only readers write."""
        self.file.words[self._slots + (slot * SLOT_SIZE + Slot.offset(field) >> 3)] = value

    def meta_word(self, page: int, field: str) -> int:
        """A 64-bit field of a page's metadata."""
        return self.file.words[self._metas + (page * META_SIZE + PageMeta.offset(field) >> 3)]

    def copy(self, page: int, skip: int = 0) -> Page | None:
        """A copy of the committed part of a sub-buffer; None if it was overwritten during the copy."""
        sequence = self.meta_word(page, "sequence")
        start = self.file.geometry.data + (page << PAGE_SHIFT)
        stamp, commit = self.file.words[start >> 3], self.file.words[(start >> 3) + 1] & COMMIT_MASK
        first, lost = self.meta_word(page, "first"), self.meta_word(page, "lost")
        body = bytes(self.file.bytes[start + HEADER : start + HEADER + commit])
        if not sequence or self.meta_word(page, "sequence") != sequence:
            return None
        data = (struct.pack("<QQ", stamp, commit) + body).ljust(PAGE_SIZE << self.order, b"\0")
        return Page(data, first, skip, lost, sequence, page)

    def pages(self, slot: int, since: int = 0, start: int | None = None) -> list[Page]:
        """Copies of a slot's sub-buffers, oldest first. Those that are overwritten during the read are missing at the beginning.

        Sub-buffers with a sequence number below `since` are omitted. `start`: the page that had number `since`, if it is known;
        then older ones are not visited.
        """
        newest, copies, copied = self.slot_word(slot, "sequence"), [], 0
        for _ in range(_TRIES):
            head = self.slot_word(slot, "head")
            page, skip = head & PAGE_MASK, head >> PAGE_BITS & CONSUMED_MASK
            if start is not None and page != start and self._is_at(start, slot, since):
                page, skip = start, 0
            while copied < newest:
                after = self.meta_word(page, "next")
                if after and 0 < self.meta_word(page, "sequence") < since:
                    page, skip = after - 1, 0
                    continue
                copy = self.copy(page, skip)
                if copy is None:
                    break
                if copy.sequence > copied:
                    copies.append(copy)
                    copied = copy.sequence
                if not after:
                    return copies
                page, skip = after - 1, 0
            else:
                return copies
        return copies

    def _is_at(self, page: int, slot: int, sequence: int) -> bool:
        """Whether a page is still a slot's sub-buffer of this number."""
        owner = self._number | slot << 32  # the fields `ring` and `slot`
        return self.meta_word(page, "ring") == owner and self.meta_word(page, "sequence") == sequence
