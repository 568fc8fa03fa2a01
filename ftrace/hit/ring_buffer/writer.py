"""Recording of an event: reserve, fill, commit. The fast path is inlined into handlers; the slow path is in the runtime.

    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(buffer, addressof(mark), addressof(place), type_id, length):
        ...                           # fields from offset 8 of place.event; the common fields are set
        commit(addressof(mark), addressof(place))

Nested writers
--------------
A slot has one thread's records, so its writers never run at the same time: a signal handler interrupts a record, makes its own
to the end, and returns. Writers nest as brackets do, and no lock and no locked instruction is needed; an exchange (single_cas)
only has to be one instruction.

    A  mark, read tail ..... exchange tail, fill ......... commit, writer = 0, compare tail
              |                        |                                     |
              B reserves first         B nests in A                          B comes too late for A's commit

The outermost record is the one whose mark stands in `Slot.writer`. Wherever B interrupts A, one of these holds:

- Before A's mark is stored, B is over when A begins.
- Between A's read of the tail and its exchange: B has moved the tail, and A's exchange fails. A is reserved again, slowly, after
  B. What A took for the time of the record before it is wrong now, so `last_stamp` becomes 0, "not known", and A carries a time
  of its own.
- After the exchange: B finds A's mark, is reserved slowly behind A, always with a time of its own (A may not have written its
  header yet), and is not published: a reader stops at `commit`, which only the outermost record moves. So no reader ever sees B
  behind a half filled A.
- After A has stored its `commit`: A clears `writer`, then compares the tail with its own end. If B has moved it, B is behind an
  end that nobody publishes: A publishes up to the tail. A signal between the two finds no writer: it is the outermost, and
  publishes both itself.
- While A changes the page (`Slot.switching`), there is no tail to exchange. B is lost, and counted (`nested`).

A handler that jumps out of a record (siglongjmp) leaves a mark in a frame that is gone: it lies below the next writer's frame, or
its token is overwritten. That writer returns the slot to its last committed state (ftrace.hit.ring_buffer.switching.recover).
Stores are ordered so that a reader in another process sees a consistent state whenever this process is killed.
"""

from __future__ import annotations

from ftrace.hit.ring_buffer.clock_state import clock_now, keep_fitted, scaled_by
from ftrace.hit.ring_buffer.layout import COMMON, DELTA_BITS, SMALL_DATA, TIME_EXTEND, TIME_STAMP, event_size
from ftrace.hit.ring_buffer.records import (
    ENTRY,
    OFFSET_MASK,
    SEQUENCE_MASK,
    SEQUENCE_SHIFT,
    UNKNOWN_END,
    Mark,
    Reservation,
    Ring,
    RingBuffer,
    Slot,
    SubBuffer,
    byte_at,
    current_sub_buffer,
    slot_at,
)
from ftrace.hit.ring_buffer.switching import RETRIES, adopt, advance_commit, is_writing, recover, switch_page
from sandbox.native import *
from sandbox.threads.tasks import Task, current, task_get

SYMBOLS = ("ring_reserve", "ring_stamp", "ring_end")
"""Functions of the runtime that handlers call to record."""

AHEAD = 128
"""How many bytes before they are written the lines of a sub-buffer are fetched."""

reserve_slowly = extern("ring_reserve", fn[ptr[u8], ptr[Mark], u64, u64], cc="preserve_most")
stamp_slowly = extern("ring_stamp", fn[u64, ptr[Mark]], cc="preserve_most")
end_slowly = extern("ring_end", fn[void, ptr[Mark]], cc="preserve_most")


@native(inline=True)
def write_header(at: ptr[u8], delta: u64, size: u64, type_id: u64, thread: u32) -> ptr[u8]:
    """Write an event's header and common fields. Returns the address of the common fields."""
    words = cast(ptr[u32], at)
    common = addressof(words[1])
    if size > SMALL_DATA + 4:
        words[0] = cast(u32, delta << 5)
        words[1] = cast(u32, size - 4)
        common = addressof(words[2])
    else:
        words[0] = cast(u32, delta << 5 | size - 4 >> 2)
    common[0] = cast(u32, type_id)
    common[1] = thread
    return cast(ptr[u8], common)


@native(inline=True)
def own_slot(ring: ptr[Ring]) -> ptr[Slot]:
    """The running thread's slot."""
    return slot_at(ring, cast(u64, current().index))


@native(inline=True)
def dummy_slot(ring: ptr[Ring]) -> ptr[Slot]:
    """A dummy slot and sub-buffer: they let `commit` end a slowly reserved record without a branch."""
    return cast(ptr[Slot], addressof(ring.dummy_slot[0]))


@native(inline=True)
def begin(mark: ptr[Mark], slot: ptr[Slot]) -> void:
    """Make `mark` the outermost record in progress."""
    mark.token = cast(u64, mark)
    volatile_store(addressof(slot.writer), cast(u64, mark))
    signal_fence()


@native(inline=True)
def reserve_for(
    task: ptr[Task], buffer: ptr[RingBuffer], mark: ptr[Mark], place: ptr[Reservation], type_id: u64, length: u64
) -> bool_:
    """As `reserve`, for the running thread's task."""
    return reserve_at(0, task, buffer, mark, place, type_id, length)


@native(inline=True)
def reserve_at(
    ticks: u64,
    task: ptr[Task],
    buffer: ptr[RingBuffer],
    mark: ptr[Mark],
    place: ptr[Reservation],
    type_id: u64,
    length: u64,
) -> bool_:
    """The same for what has happened at `ticks`, just now; 0: happens now. A record that came in between is not the later one.

    The tail is read before the mark is begun: if it is still the same at the exchange, no other record came in between,
    everything before it is published, and `commit` has only this record to publish.
    """
    ring = volatile_load(addressof(buffer.ring))
    if unlikely(ring == null):
        return False
    slot = slot_at(ring, cast(u64, task.index))
    mark.ring = ring
    place.slot = slot
    tail = volatile_load(addressof(slot.tail))
    if likely(volatile_load(addressof(slot.writer)) == 0 and slot.owner == task.tid):
        begin(mark, slot)
        size = event_size(length)
        page = current_sub_buffer(ring, slot)
        offset = tail & OFFSET_MASK
        if likely(offset + size <= ring.scaled_capacity):
            at = byte_at(page, offset)
            clock = ring.clock
            segment = volatile_load(addressof(clock.sequence))
            stamp = scaled_by(clock, segment, rdtsc() if ticks == 0 else ticks)
            delta = stamp - volatile_load(addressof(slot.last_stamp))
            if likely(delta < 1 << DELTA_BITS and segment == volatile_load(addressof(clock.sequence))):
                volatile_store(addressof(slot.last_stamp), stamp)
                end = tail + size + ENTRY
                if likely(single_cas(addressof(slot.tail), tail, end)):
                    place.page = page
                    place.end = end
                    place.stamp = stamp
                    prefetch(addressof(at[AHEAD]))
                    place.event = write_header(at, delta, size, type_id, task.pid)
                    return True
                volatile_store(addressof(slot.last_stamp), 0)
    else:
        mark.token = 0
    place.event = reserve_slowly(mark, type_id, length)
    place.stamp = stamp_slowly(mark)
    place.slot = dummy_slot(mark.ring)  # from memory: `ring` would keep a register while the clock is read
    place.page = cast(ptr[SubBuffer], place.slot)
    place.end = UNKNOWN_END
    return place.event != null


@native(inline=True)
def reserve(buffer: ptr[RingBuffer], mark: ptr[Mark], place: ptr[Reservation], type_id: u64, length: u64) -> bool_:
    """Reserve an event of `length` bytes, including the 8 bytes of common fields, which are filled in.

    Returns whether `place.event` is its address; then `commit` must follow. If not, recording is off, or the event is lost, which
    is counted.
    """
    return reserve_for(current(), buffer, mark, place, type_id, length)


@native(inline=True)
def commit(mark: ptr[Mark], place: ptr[Reservation]) -> void:
    """Publish the reserved event. If it is nested, the outermost record publishes it.

    A record that was reserved fast is the outermost, and everything before it is published. Nested ones, which are reserved
    slowly, have moved the tail; they are published afterwards. One that was reserved slowly itself is ended in `Ring.dummy_slot`
    first, so that no test tells them apart.
    """
    slot = place.slot
    end = place.end
    signal_fence()
    volatile_store(addressof(place.page.commit), end & OFFSET_MASK)
    volatile_store(addressof(slot.writer), 0)
    if unlikely(end != volatile_load(addressof(slot.tail))):
        end_slowly(mark)


@native(inline=True)
def shorten(place: ptr[Reservation], length: u64, used: u64) -> void:
    """Give back what a record of `length` bytes does not need, unless another one is behind it by now.

    It keeps the header of an event of more than SMALL_DATA bytes, which says how many they are.
    """
    size = (max(used, SMALL_DATA + 4) + 3) & ~3
    if length <= SMALL_DATA or place.end == UNKNOWN_END or size >= length:
        return
    end = place.end - (((length + 3) & ~3) - size)
    if likely(single_cas(addressof(place.slot.tail), place.end, end)):
        cast(ptr[u32], place.event)[-1] = cast(u32, size + 4)
        place.end = end


@native(inline=True)
def fill(event: ptr[u8], data: ptr[u8], size: u64) -> void:
    """Write the bytes after the common fields, padded with zeros to 4 bytes."""
    for index in range(size):
        event[COMMON + index] = data[index]
    for index in range(size, (size + 3) & ~3):
        event[COMMON + index] = 0


@native(name="ring_write")
def write(buffer: ptr[RingBuffer], type_id: u64, data: ptr[u8], size: u64, thread: u32) -> bool_:
    """Record an event of `size` bytes after the common fields, outside hits, as one of `thread`; 0: of the running thread.

    False if it is lost or recording is off.
    """
    if task_get() == null:
        return False
    mark: Mark = zeroed
    place: Reservation = zeroed
    if not reserve(buffer, addressof(mark), addressof(place), type_id, size + COMMON):
        return False
    if thread != 0:
        cast(ptr[u32], place.event)[1] = thread
    fill(place.event, data, size)
    commit(addressof(mark), addressof(place))
    return True


@native
def publish_all(ring: ptr[Ring], slot: ptr[Slot]) -> u64:
    """Publish everything up to the tail. Returns the tail."""
    tail: u64 = 0
    for _attempt in range(RETRIES):
        tail = volatile_load(addressof(slot.tail))
        page = current_sub_buffer(ring, slot)  # the tail's, unless its sequence is old below
        if slot.sequence == 0:
            return tail
        advance_commit(ring, slot)
        if tail >> SEQUENCE_SHIFT == volatile_load(addressof(slot.commit_sequence)) & SEQUENCE_MASK:
            volatile_store(addressof(page.commit), tail & OFFSET_MASK)
        if volatile_load(addressof(slot.tail)) == tail:
            return tail
    return tail


@native(noinline=True, name="ring_publish")
def publish(mark: ptr[Mark]) -> void:
    """End the outermost record, and publish it with the nested ones.

    If others come in between again and again, the next record is reserved slowly, and publishes them.
    """
    slot = own_slot(mark.ring)
    for _attempt in range(RETRIES):
        begin(mark, slot)
        tail = publish_all(mark.ring, slot)
        volatile_store(addressof(slot.writer), 0)
        if volatile_load(addressof(slot.tail)) == tail:
            return
    volatile_store(addressof(slot.last_stamp), 0)


@native(cc="preserve_most", noinline=True, name="ring_end")
def end_record(mark: ptr[Mark]) -> void:
    """The slow path of `commit`: of a record that others have interrupted, or that was reserved slowly."""
    writer = volatile_load(addressof(own_slot(mark.ring).writer))
    if writer == 0 or writer == cast(u64, mark):  # else it is nested
        publish(mark)


@native
def write_stamp(at: ptr[u8], before: u64, stamp: u64) -> void:
    """Write a TIME_EXTEND if the time of the previous event is known, else a TIME_STAMP."""
    words = cast(ptr[u32], at)
    kind: u64 = TIME_EXTEND if before != 0 else TIME_STAMP
    value = stamp - before
    words[0] = cast(u32, value << 5 | kind)
    words[1] = cast(u32, value >> DELTA_BITS)


@native(inline=True)
def is_switching(slot: ptr[Slot]) -> bool_:
    """Whether the record that this one interrupts is changing the page. If so, this one is lost, which is counted."""
    if volatile_load(addressof(slot.switching)) == 0:
        return False
    single_add(addressof(slot.nested), 1)
    volatile_store(addressof(slot.last_stamp), 0)
    return True


@native(inline=True)
def write_event(
    page: ptr[SubBuffer], offset: u64, before: u64, stamp: u64, extra: u64, size: u64, type_id: u64, thread: u32
) -> ptr[u8]:
    """Write the header of an event at `stamp`, after `extra` bytes for a time stamp of its own."""
    if extra != 0:
        write_stamp(byte_at(page, offset), before, stamp)
    delta = stamp - before if extra == 0 else 0
    return write_header(byte_at(page, offset + extra), delta, size, type_id, thread)


@native
def try_reserve(mark: ptr[Mark], type_id: u64, length: u64, nested: bool_) -> ptr[u8]:
    """Reserve an event, with a page switch or a separate time stamp if needed. Null if the event is lost, which is counted."""
    ring = mark.ring
    slot = own_slot(mark.ring)
    size = event_size(length)
    stamp_size: u64 = 8 if nested else 0
    if size + stamp_size > ring.capacity:
        single_add(addressof(slot.too_long), 1)
        return null
    for _attempt in range(RETRIES):
        if is_switching(slot):
            return null
        tail = volatile_load(addressof(slot.tail))
        page = current_sub_buffer(ring, slot)
        before: u64 = volatile_load(addressof(slot.last_stamp))
        stamp = max(clock_now(ring.clock), before)
        if nested:
            before = 0
        extra: u64 = 0 if before != 0 and stamp - before < 1 << DELTA_BITS else 8
        offset = tail & OFFSET_MASK
        if offset + extra + size > ring.capacity:
            if not switch_page(ring, slot, extra + size, nested):
                return null
        else:
            volatile_store(addressof(slot.last_stamp), stamp)
            if single_cas(addressof(slot.tail), tail, tail + extra + size + ENTRY):
                return write_event(page, offset, before, stamp, extra, size, type_id, current().pid)
            volatile_store(addressof(slot.last_stamp), 0)
    single_add(addressof(slot.retried), 1)
    return null


@native(cc="preserve_most", noinline=True, name="ring_reserve")
def reserve_slow(mark: ptr[Mark], type_id: u64, length: u64) -> ptr[u8]:
    """The slow path of `reserve`: another clock, no space, a long pause, a nested record, a new thread."""
    slot = own_slot(mark.ring)
    task = current()
    if mark.token == 0:
        outer = volatile_load(addressof(slot.writer))
        if outer != 0 and is_writing(slot, task, mark):
            return try_reserve(mark, type_id, length, True)
        begin(mark, slot)
        if outer != 0:
            recover(mark.ring, slot)
    keep_fitted(mark.ring.clock)
    if slot.owner == task.tid or adopt(slot, task):
        event = try_reserve(mark, type_id, length, False)
        if event != null:
            return event
    else:
        single_add(addressof(slot.dropped), 1)
    publish(mark)
    return null


@native(cc="preserve_most", noinline=True, name="ring_stamp")
def stamp_of(mark: ptr[Mark]) -> u64:
    """The time of the mark's newest record; now if that is not known."""
    stamp = volatile_load(addressof(own_slot(mark.ring).last_stamp))
    return stamp if stamp != 0 else clock_now(mark.ring.clock)
