"""The native half of a consuming reader: what it and a writer that overwrites the oldest sub-buffer decide by one CAS."""

from __future__ import annotations

from ftrace.ring_buffer.clock_state import ClockState, clock_now
from ftrace.ring_buffer.pool import give_page
from ftrace.ring_buffer.records import PAGE_MASK, TAG_SHIFT, Ring, Slot, meta_at
from sandbox.native import addressof, atomic_cas, atomic_sub, bool_, native, ptr, u64


@native(name="ring_take_oldest")
def take_oldest(ring: ptr[Ring], slot: ptr[Slot], head: u64) -> bool_:
    """Take the oldest sub-buffer out of the slot's list, and give it back to the pool. It has to be complete.

    `head`: what Slot.head was before the sub-buffer was read. False: it has been overwritten since.
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
    """Say how many events of the oldest sub-buffer were consumed. False: it has been overwritten since."""
    return atomic_cas(addressof(slot.head), head, after, "acq_rel")


@native(name="ring_clock_now")
def read_clock(clock: ptr[ClockState]) -> u64:
    return clock_now(clock)
