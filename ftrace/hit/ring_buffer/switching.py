"""The slow path of a writer: switching sub-buffers, nested records, recovery from records that never end."""

from __future__ import annotations

from ftrace.hit.nodes import on_one_stack
from ftrace.hit.ring_buffer.clock_state import clock_now
from ftrace.hit.ring_buffer.comms import save_comm
from ftrace.hit.ring_buffer.layout import PADDING, PAGE_SHIFT, SLOT_SIZE, TIME_EXTEND
from ftrace.hit.ring_buffer.pool import give_page, take_page
from ftrace.hit.ring_buffer.records import (
    CONSUMED_MASK,
    ENTRY_MASK,
    NO_PAGE,
    OFFSET_BITS,
    OFFSET_MASK,
    PAGE_BITS,
    PAGE_MASK,
    REAPED,
    SEQUENCE_MASK,
    SEQUENCE_SHIFT,
    TAG_SHIFT,
    Mark,
    Ring,
    Slot,
    SubBuffer,
    byte_at,
    current_page,
    losses,
    meta_at,
    page_at,
)
from sandbox.native import *
from sandbox.threads.tasks import Task

RETRIES = 8
NOTHING = 0xFFFF_FFFF_FFFF_FFFF


@native
def events_in(page: ptr[SubBuffer], end: u64) -> u64:
    """Number of events in the first `end` bytes of a sub-buffer. The events must be complete."""
    count: u64 = 0
    offset: u64 = 0
    while offset < end:
        words = cast(ptr[u32], byte_at(page, offset))
        kind = words[0] & 31
        if kind >= TIME_EXTEND:
            offset += 8
        elif kind == PADDING or kind == 0:
            offset += cast(u64, words[1]) + 4
            count += 1
        else:
            offset += cast(u64, kind) * 4 + 4
            count += 1
    return count


@native
def adopt(slot: ptr[Slot], task: ptr[Task]) -> bool_:
    """Make the running thread the slot's owner; the former owner's events are kept. Returns False if the slot is in use."""
    before = load(addressof(slot.owner), "relaxed")
    if before == REAPED or not atomic_cas(addressof(slot.owner), before, task.tid, "acq_rel"):
        return False
    if slot.sequence == 0:
        volatile_store(addressof(slot.tail), NO_PAGE)
    save_comm(cast(u64, task.tid))
    return True


@native
def is_writing(slot: ptr[Slot], task: ptr[Task], mark: ptr[Mark]) -> bool_:
    """Whether the outermost record will continue after the record of `mark`. It does not if siglongjmp has ended it."""
    outer = volatile_load(addressof(slot.writer))
    here = cast(u64, mark)
    if slot.owner != task.tid or here == outer or (here > outer and on_one_stack(outer, here)):
        return False
    token: array[u64, 1] = zeroed
    probe_read(addressof(token[0]), outer, 8)
    return token[0] == outer


@native
def free_after(ring: ptr[Ring], slot: ptr[Slot], page: u64) -> void:
    """Free the sub-buffers after `page`, which becomes the newest."""
    meta = meta_at(ring, page)
    link = meta.next
    meta.next = 0
    meta.end = NOTHING
    while link != 0:
        after = meta_at(ring, link - 1).next
        give_page(ring, link - 1)
        atomic_sub(addressof(slot.pages), 1, "relaxed")
        link = after


@native
def recover(ring: ptr[Ring], slot: ptr[Slot]) -> void:
    """Return to the last committed state after a record that will never end, and count the lost events."""
    volatile_store(addressof(slot.switching), 0)
    if slot.sequence == 0:
        volatile_store(addressof(slot.tail), NO_PAGE)
        volatile_store(addressof(slot.last_stamp), 0)
        return
    last = slot.commit_page
    tail = volatile_load(addressof(slot.tail))
    current = current_page(slot)
    newest = meta_at(ring, current)
    written = newest.first
    if tail >> SEQUENCE_SHIFT == newest.sequence & SEQUENCE_MASK:  # while it is being linked, the tail is of the last
        written += tail >> OFFSET_BITS & ENTRY_MASK
    if slot.spare == current + 1 or slot.spare == newest.next:
        slot.spare = 0  # it was being linked
    free_after(ring, slot, last)
    page = page_at(ring, last)
    entries = events_in(page, page.commit)
    single_add(addressof(slot.abandoned), written - (meta_at(ring, last).first + entries))
    slot.current = last << PAGE_SHIFT
    slot.sequence = meta_at(ring, last).sequence
    slot.commit_sequence = slot.sequence
    volatile_store(addressof(slot.last_stamp), 0)
    volatile_store(addressof(slot.tail), slot.sequence << SEQUENCE_SHIFT | entries << OFFSET_BITS | page.commit)


@native
def steal_oldest(ring: ptr[Ring], slot: ptr[Slot]) -> u64:
    """Take the slot's oldest sub-buffer to overwrite it. Returns its number plus 1; if it is in use, 0, and counts the loss."""
    for _attempt in range(RETRIES):
        head = load(addressof(slot.head), "acquire")
        page = head & PAGE_MASK
        meta = meta_at(ring, page)
        if meta.sequence >= slot.commit_sequence:
            if meta.sequence == slot.sequence:
                single_add(addressof(slot.dropped), 1)
            else:
                single_add(addressof(slot.commit_overrun), 1)
            return 0
        after = meta.next - 1
        lost = meta_at(ring, after).first - meta.first - (head >> PAGE_BITS & CONSUMED_MASK)
        if atomic_cas(addressof(slot.head), head, after | (meta.sequence + 1) << TAG_SHIFT, "acq_rel"):
            single_add(addressof(slot.overrun), lost)
            return page + 1
    single_add(addressof(slot.dropped), 1)
    return 0


@native
def find_page(ring: ptr[Ring], slot: ptr[Slot]) -> u64:
    """Find a sub-buffer to write to. Returns its number plus 1; if there is none, 0, and counts the loss."""
    limit = slot.max_pages if slot.max_pages != 0 else ring.max_pages
    if load(addressof(slot.pages), "relaxed") < limit:
        page = take_page(ring)
        if page != 0:
            atomic_add(addressof(slot.pages), 1, "relaxed")
            return page
    if ring.overwrite == 0 or slot.sequence == 0:
        single_add(addressof(slot.dropped), 1)
        return 0
    return steal_oldest(ring, slot)


@native
def find_spare(ring: ptr[Ring], slot: ptr[Slot]) -> bool_:
    """Reserve the next sub-buffer. Writes to its memory, to have page faults here: during a switch nested events are lost."""
    if volatile_load(addressof(slot.spare)) != 0:
        return True
    page = find_page(ring, slot)
    if page == 0:
        return False
    store(addressof(meta_at(ring, page - 1).sequence), 0, "release")
    volatile_store(addressof(page_at(ring, page - 1).commit), 0)
    meta_at(ring, page - 1).order = ring.order
    if not single_cas(addressof(slot.spare), 0, page):  # a nested record has found one
        give_page(ring, page - 1)
        atomic_sub(addressof(slot.pages), 1, "relaxed")
    return True


@native
def prepare(ring: ptr[Ring], slot: ptr[Slot], page: u64, stamp: u64, first: u64) -> void:
    """Initialise `page` as an empty sub-buffer. Until its sequence is set, readers treat it as free."""
    meta = meta_at(ring, page)
    buffer = page_at(ring, page)
    store(addressof(meta.sequence), 0, "release")
    volatile_store(addressof(buffer.commit), 0)
    volatile_store(addressof(buffer.stamp), stamp)
    meta.first = first
    meta.lost = losses(slot)
    meta.next = 0
    meta.end = NOTHING
    meta.ring = cast(u32, ring.number)
    meta.slot = cast(u32, (cast(u64, slot) - ring.slots) // SLOT_SIZE)
    store(addressof(meta.sequence), slot.sequence + 1, "release")


@native
def link(ring: ptr[Ring], slot: ptr[Slot], page: u64, tail: u64) -> void:
    """Append a prepared sub-buffer to the slot's list."""
    if slot.sequence == 0:
        slot.commit_page = page
        volatile_store(addressof(slot.commit_sequence), 1)
        store(addressof(slot.head), page | 1 << TAG_SHIFT, "release")
    else:
        before = meta_at(ring, current_page(slot))
        volatile_store(addressof(before.end), tail & OFFSET_MASK)
        store(addressof(before.next), page + 1, "release")
    volatile_store(addressof(slot.current), page << PAGE_SHIFT)
    volatile_store(addressof(slot.sequence), slot.sequence + 1)


@native
def advance_commit(ring: ptr[Ring], slot: ptr[Slot]) -> void:
    """Publish all sub-buffers before the newest completely."""
    while volatile_load(addressof(slot.commit_sequence)) != volatile_load(addressof(slot.sequence)):
        meta = meta_at(ring, slot.commit_page)
        volatile_store(addressof(page_at(ring, slot.commit_page).commit), meta.end)
        volatile_store(addressof(slot.commit_page), meta.next - 1)
        volatile_store(addressof(slot.commit_sequence), slot.commit_sequence + 1)


@native
def switch_page(ring: ptr[Ring], slot: ptr[Slot], needed: u64, nested: bool_) -> bool_:
    """Switch to another sub-buffer, unless there is space already. If none is available, counts the loss and returns False."""
    if not find_spare(ring, slot):
        volatile_store(addressof(slot.last_stamp), 0)
        return False
    volatile_store(addressof(slot.switching), 1)
    signal_fence()
    tail = volatile_load(addressof(slot.tail))
    if (tail & OFFSET_MASK) + needed <= ring.capacity:
        volatile_store(addressof(slot.switching), 0)
        return True
    page = slot.spare - 1
    first: u64 = 0
    if slot.sequence != 0:
        first = meta_at(ring, current_page(slot)).first + (tail >> OFFSET_BITS & ENTRY_MASK)
    stamp = max(clock_now(ring.clock), slot.last_stamp)
    prepare(ring, slot, page, stamp, first)
    link(ring, slot, page, tail)
    volatile_store(addressof(slot.last_stamp), stamp)
    signal_fence()
    volatile_store(addressof(slot.tail), slot.sequence << SEQUENCE_SHIFT)
    volatile_store(addressof(slot.spare), 0)
    volatile_store(addressof(slot.switching), 0)
    if not nested:
        advance_commit(ring, slot)
    return True
