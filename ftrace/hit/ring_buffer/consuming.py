"""The native half of consuming readers. A compare-and-swap of Slot.head decides between a reader and an overwriting writer."""

from __future__ import annotations

from ftrace.hit.ring_buffer.clock_state import ClockState, clock_now, keep_fitted
from ftrace.hit.ring_buffer.layout import COMMIT_MASK, HEADER, MISSED_EVENTS, MISSED_STORED, PAGE_SIZE
from ftrace.hit.ring_buffer.pool import give_page
from ftrace.hit.ring_buffer.records import (
    CONSUMED_MASK,
    ENTRY_MASK,
    NO_PAGE,
    OFFSET_BITS,
    PAGE_BITS,
    PAGE_MASK,
    REAPED,
    TAG_SHIFT,
    Ring,
    RingBuffer,
    Slot,
    current_page,
    losses,
    meta_at,
    page_at,
)
from sandbox.native import *


@native(name="ring_take_oldest")
def take_oldest(ring: ptr[Ring], slot: ptr[Slot], head: u64) -> bool_:
    """Remove the oldest sub-buffer from the slot's list and free it. It must be complete.

    `head`: Slot.head before the sub-buffer was read. Returns False if the sub-buffer has been overwritten since.
    """
    page = head & PAGE_MASK
    meta = meta_at(ring, page)
    after = meta.next - 1
    if not atomic_cas(addressof(slot.head), head, after | (meta.sequence + 1) << TAG_SHIFT, "acq_rel"):
        return False
    give_page(ring, page)
    atomic_sub(addressof(slot.pages), 1, "relaxed")
    return True


@native(name="ring_consume")
def consume(slot: ptr[Slot], head: u64, after: u64) -> bool_:
    """Set the number of consumed events of the oldest sub-buffer. Returns False if it has been overwritten since."""
    return atomic_cas(addressof(slot.head), head, after, "acq_rel")


@native(inline=True)
def subbuf_bytes(ring: ptr[Ring]) -> u64:
    return cast(u64, PAGE_SIZE) << ring.order


@native
def copy_page(ring: ptr[Ring], page: u64, to: ptr[u64]) -> void:
    """Copy the committed part of a sub-buffer, and fill the rest of the copy with zeros."""
    words = cast(ptr[u64], page_at(ring, page))
    size = subbuf_bytes(ring) >> 3
    used = min(HEADER + (words[1] & COMMIT_MASK) + 7 >> 3, size)
    for index in range(used):
        to[index] = words[index]
    for index in range(used, size):
        to[index] = 0


@native
def mark_lost(to: ptr[u64], lost: u64, size: u64) -> void:
    """Mark in a copied sub-buffer's commit word that events are missing before it, with their number if there is space."""
    end = HEADER + to[1]
    to[1] |= MISSED_EVENTS
    if end + 8 <= size:
        at = cast(ptr[u64], cast(u64, to) + end)
        at[0] = lost
        to[1] |= MISSED_STORED


@native
def drain_page(ring: ptr[Ring], slot: ptr[Slot], to: ptr[u64]) -> bool_:
    """Consume the oldest sub-buffer into `to`. False if it is incomplete, partly consumed, or has just been overwritten."""
    head = load(addressof(slot.head), "acquire")
    meta = meta_at(ring, head & PAGE_MASK)
    sequence = load(addressof(meta.sequence), "acquire")
    if sequence == 0 or sequence >= load(addressof(slot.commit_sequence), "acquire"):
        return False
    if head >> PAGE_BITS & CONSUMED_MASK != 0:
        return False
    first = meta.first
    lost = meta.lost
    after = meta_at(ring, meta.next - 1).first
    copy_page(ring, head & PAGE_MASK, to)
    if not take_oldest(ring, slot, head):
        return False
    missing = first - slot.read + lost - slot.reported
    if missing != 0:
        mark_lost(to, missing, subbuf_bytes(ring))
    slot.read = after
    slot.reported = lost
    slot.consumed += after - first
    return True


@native(name="ring_drain")
def drain(ring: ptr[Ring], slot: ptr[Slot], to: u64, limit: u64) -> u64:
    """Consume up to `limit` complete sub-buffers into memory at `to`. Returns how many were consumed."""
    for number in range(limit):
        if not drain_page(ring, slot, cast(ptr[u64], to + number * subbuf_bytes(ring))):
            return number
    return limit


@native(name="ring_reap")
def reap(ring: ptr[Ring], slot: ptr[Slot], owner: u64) -> bool_:
    """Free the last sub-buffer of a thread that has ended, if all its events were consumed. Returns whether it was freed."""
    if not atomic_cas(addressof(slot.owner), cast(u32, owner), REAPED, "acq_rel"):
        return False
    page = slot.head & PAGE_MASK
    unread = (slot.tail >> OFFSET_BITS & ENTRY_MASK) - (slot.head >> PAGE_BITS & CONSUMED_MASK)
    is_last = page == current_page(slot) and slot.writer == 0 and slot.sequence != 0 and unread == 0
    if is_last:
        slot.tail = NO_PAGE
        slot.sequence = 0
        slot.commit_sequence = 0
        slot.pages = 0
        if slot.spare != 0:
            give_page(ring, slot.spare - 1)
            slot.spare = 0
        slot.head = 0
        slot.read = 0
        slot.reported = losses(slot)
        give_page(ring, page)
    store(addressof(slot.owner), cast(u32, owner), "release")
    return is_last


@native(name="ring_set_live")
def set_live(buffer: ptr[RingBuffer], ring: ptr[Ring], on: bool_) -> bool_:
    """Make `ring` the live ring, unless it is null, and turn recording on or off. False if another thread exchanges rings."""
    if not atomic_cas(addressof(buffer.swapping), 0, 1, "acq_rel"):
        return False
    if ring != null:
        buffer.live = ring
    store(addressof(buffer.ring), buffer.live if on else null, "release")
    store(addressof(buffer.swapping), 0, "release")
    return True


@native(name="ring_set_spare")
def set_spare(buffer: ptr[RingBuffer], ring: ptr[Ring]) -> bool_:
    """Set the spare ring; null: none. Returns False if another thread exchanges rings."""
    if not atomic_cas(addressof(buffer.swapping), 0, 1, "acq_rel"):
        return False
    buffer.spare = ring
    store(addressof(buffer.swapping), 0, "release")
    return True


@native(name="ring_swap")
def swap(buffer: ptr[RingBuffer]) -> bool_:
    """Take a snapshot: exchange the live ring and the spare ring. A record in progress ends in the ring in which it began.

    Returns False if there is no spare ring, or if another thread exchanges rings.
    """
    if not atomic_cas(addressof(buffer.swapping), 0, 1, "acq_rel"):
        return False
    spare = buffer.spare
    if spare != null:
        buffer.spare = buffer.live
        buffer.live = spare
        if buffer.ring != null:
            store(addressof(buffer.ring), spare, "release")
    store(addressof(buffer.swapping), 0, "release")
    return spare != null


@native(name="ring_clock_now")
def read_clock(clock: ptr[ClockState]) -> u64:
    """The time of a clock, which is first fitted again if that is due."""
    keep_fitted(clock)
    return clock_now(clock)
