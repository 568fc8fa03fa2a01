"""Structures shared by writers and readers: slots, page metadata, rings, and the handle that handlers use."""

from __future__ import annotations

from ftrace.hit.ring_buffer.clock_state import ClockState
from ftrace.hit.ring_buffer.layout import META_SIZE, PAGE_SHIFT, SLOT_SIZE
from sandbox.native import *

# Slot.tail: offset of the next event, and number of events in the sub-buffer. One word, so that both change atomically.
OFFSET_BITS, ENTRY_BITS = 20, 20
OFFSET_MASK = (1 << OFFSET_BITS) - 1
ENTRY = 1 << OFFSET_BITS
ENTRY_MASK = (1 << ENTRY_BITS) - 1
SEQUENCE_SHIFT = OFFSET_BITS + ENTRY_BITS
SEQUENCE_MASK = (1 << (64 - SEQUENCE_SHIFT)) - 1
NO_PAGE = OFFSET_MASK
"""A tail after which no event fits."""
UNKNOWN_END = (1 << 64) - 1
"""A tail that no slot has."""

# Slot.head: the oldest page, the number of its events that were consumed, and a tag that differs for each sub-buffer.
PAGE_BITS = 24
PAGE_MASK = (1 << PAGE_BITS) - 1
CONSUMED_MASK = (1 << 20) - 1
TAG_SHIFT = PAGE_BITS + 20

REAPED = 0xFFFF_FFFF
"""Slot.owner while a reader frees the pages of a thread that has ended."""


@struct
class Slot(Structure):
    """A thread's part of a ring. Written by the thread; `head` and `pages` by readers too, `owner` when it changes hands."""

    tail: u64  # these four words: see Ring.dummy_slot
    last_stamp: u64  # of the newest event; 0: the next event takes an absolute stamp
    current: u64  # offset of the page that is being written
    writer: u64  # address of the Mark of the outermost record in progress; 0: none is
    owner: u32  # thread id
    switching: u32  # 1: the page is being switched; a record that begins now is lost
    commit_sequence: u64  # sub-buffers before this one are complete
    sequence: u64  # of the sub-buffer that is being written, from 1; 0: there is none yet
    commit_page: u64
    head: u64
    pages: u64  # number of sub-buffers of the slot
    max_pages: u64  # 0: as the ring says
    spare: u64  # page to be written next, plus 1; 0: it has to be found first
    overrun: u64  # events that were overwritten before they were consumed
    commit_overrun: u64  # events lost because an unfinished record lay in the oldest sub-buffer
    dropped: u64  # ... for lack of space
    nested: u64  # ... because they interrupted a page switch
    retried: u64  # ... because others interrupted them again and again
    abandoned: u64  # ... with a record that never ended
    too_long: u64  # ... because no sub-buffer can hold them
    read: u64  # reader: number of the next event to be consumed
    reported: u64  # reader: losses that were reported
    consumed: u64  # reader: events that were consumed
    trimmed: u64  # reader: events that were given up because the slot was made smaller
    reserved: array[u64, 9]


@struct
class PageMeta(Structure):
    """Metadata of the sub-buffer that begins with a page."""

    sequence: u64  # 0: free, or being prepared
    first: u64  # events that the slot had written before
    lost: u64  # events that it had dropped before
    end: u64  # bytes of data, once it is full
    next: u64  # the page after it, plus 1; 0 while it is the newest
    ring: u32
    slot: u32
    order: u64
    reserved: u64


@struct
class SubBuffer(Structure):
    """The header of a sub-buffer, as described by events/header_page."""

    stamp: u64
    commit: u64


@struct
class Ring(Structure):
    """A ring's memory and settings. Private to the process. Only `max_pages`, `overwrite` and `hint` change while it is used."""

    slots: u64  # address of the first
    data: u64  # address of page 0
    capacity: u64  # bytes of events in a sub-buffer
    clock: ptr[ClockState]
    is_scaled: u64  # 1: the clock is the scaled time-stamp counter
    scaled_capacity: u64  # `capacity` if it is, else 0: a writer then takes the slow path
    metas: u64
    bitmap: u64
    words: u64  # ... of the bitmap
    hint: u64  # word of the bitmap where the search for a free page begins
    order: u64
    max_pages: u64
    overwrite: u64
    number: u64  # in the file's directory
    dummy_slot: array[u64, 8]  # for `commit` of a record that was reserved slowly: its first word stays 0


@struct
class RingBuffer(Structure):
    """The handle that handlers use. One store to `ring` takes a snapshot, clears the buffer, or stops recording."""

    ring: ptr[Ring]  # `live`, or null: nothing is recorded
    live: ptr[Ring]
    spare: ptr[Ring]  # the snapshot's, or null
    swapping: u64  # 1 while a thread exchanges them


@struct
class Mark(Structure):
    """A record in progress, in the frame of the function that makes it. Records that interrupt it find the token."""

    token: u64  # its own address; 0 until it is the outermost
    ring: ptr[Ring]


@struct
class Reservation(Structure):
    """A record's state in the function that makes it. Nothing else refers to it, so the compiler keeps it in registers."""

    event: ptr[u8]
    slot: ptr[Slot]
    page: ptr[SubBuffer]
    end: u64  # the slot's tail after the record; UNKNOWN_END if it was reserved slowly, and slot and page are Ring.dummy_slot
    stamp: u64  # its time


@native(inline=True)
def slot_at(ring: ptr[Ring], index: u64) -> ptr[Slot]:
    return cast(ptr[Slot], ring.slots + index * SLOT_SIZE)


@native(inline=True)
def page_at(ring: ptr[Ring], page: u64) -> ptr[SubBuffer]:
    return cast(ptr[SubBuffer], ring.data + (page << PAGE_SHIFT))


@native(inline=True)
def current_page(slot: ptr[Slot]) -> u64:
    """The number of the page that is being written."""
    return volatile_load(addressof(slot.current)) >> PAGE_SHIFT


@native(inline=True)
def current_sub_buffer(ring: ptr[Ring], slot: ptr[Slot]) -> ptr[SubBuffer]:
    """The sub-buffer that is being written."""
    return cast(ptr[SubBuffer], ring.data + volatile_load(addressof(slot.current)))


@native(inline=True)
def meta_at(ring: ptr[Ring], page: u64) -> ptr[PageMeta]:
    return cast(ptr[PageMeta], ring.metas + page * META_SIZE)


@native(inline=True)
def byte_at(page: ptr[SubBuffer], offset: u64) -> ptr[u8]:
    """The address at `offset` in a sub-buffer's events."""
    return addressof(cast(ptr[u8], page)[16 + offset])


@native(inline=True)
def losses(slot: ptr[Slot]) -> u64:
    """Number of events that were lost without having been written."""
    return slot.commit_overrun + slot.dropped + slot.nested + slot.retried + slot.abandoned + slot.too_long
