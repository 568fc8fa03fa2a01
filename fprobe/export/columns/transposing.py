"""Native code from sub-buffers to columns: where the records are, their fields, and calls from entries and returns.

All arrays belong to the caller. Functions that fill one return how far they have come, and are called again with more space.
"""

from __future__ import annotations

from fprobe.export.columns.numbers import Table, is_in, number_of, refill
from ftrace.hit.nodes import MOST_PLACES, OUTER_AT
from ftrace.hit.ring_buffer.layout import (
    COMMIT_MASK,
    DELTA_BITS,
    HEADER,
    MISSED_EVENTS,
    PADDING,
    TIME_EXTEND,
    TIME_STAMP,
    TIME_STAMP_BITS,
)
from sandbox.native import *
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

_STAMP_LOW = (1 << TIME_STAMP_BITS) - 1
OTHER, PROBE_ENTRY, PROBE_RETURN, GRAPH_ENTRY, GRAPH_EXIT, CALL_ENTRY, CALL_RETURN = range(7)
"""What records of a type are to calls: of probe events, of the function_graph tracer, of `ftrace.hit.call_records`."""
DAMAGED = (1 << 64) - 1
"""Result of `locate` for a sub-buffer that is none."""
NO_DURATION = -1
MOST_STACKS = 1 << 20
"""Different stacks of a file; a call with another one has none."""
_GRAPH_CALLTIME, _GRAPH_DEPTH, _ENTRY_DEPTH = 32, 24, 16
"""Offsets in a funcgraph_exit record, and in a funcgraph_entry record."""
_AX, _CALL_PLACE = 16, 24
"""Offsets in a record of a return, and in one of `ftrace.hit.call_records`."""


@struct
class RecordPlace(Structure):
    """A record: its time, its address, its length and its type, its thread, and whether records are missing before it."""

    stamp: u64
    data: u64
    length: u32
    type: u16
    lost: u16
    tid: u32
    padding: u32


@struct
class Frame(Structure):
    """A call in progress. `inner`: time of the calls that it made; `stack`: its number among the stacks, 0 for none.

    `place`: on the thread's shadow stack, 0 if that was not recorded; `outer`: that of the call around it.
    """

    entered: u64
    inner: u64
    ip: u64
    place: u64
    outer: u64
    function: u32
    stack: u32
    depth: u32


@struct
class Thread(Structure):
    """The calls in progress of the thread that has a slot. `origin`: which trace array of which process the slot is of."""

    frames: ptr[Frame]
    capacity: u64
    depth: u64
    tid: u64
    origin: u64


@struct
class Rows(Structure):
    """Columns of calls. `origin`: that of the thread; `unfinished`: how many lack a duration or a time of their own.

    `leave`: 1 more than the index of the return among the records, 0 without one.
    """

    entered: ptr[i64]
    duration: ptr[i64]
    own: ptr[i64]
    ax: ptr[u64]
    tid: ptr[u32]
    function: ptr[u32]
    stack: ptr[u32]
    depth: ptr[u32]
    origin: ptr[u32]
    leave: ptr[u32]
    count: u64
    capacity: u64
    unfinished: u64


@struct
class Pairing(Structure):
    """`kinds`: by type; `address_at`: by type, the offset of the function's address. `offset`: added to times."""

    kinds: ptr[u8]
    address_at: ptr[u16]
    functions: ptr[Table]
    stacks: ptr[Table]
    returning: ptr[Table]
    rows: ptr[Rows]
    offset: i64


@native(inline=True)
def _u32_at(address: u64) -> u32:
    return cast(ptr[u32], address)[0]


@native(inline=True)
def _u64_at(address: u64) -> u64:
    return cast(ptr[u64], address)[0]


@native(bounded=False)
def locate(page: u64, size: u64, found: ptr[RecordPlace]) -> u64:
    """The records of a sub-buffer of `size` bytes, oldest first. `found` has space for one in 8 bytes. Returns their number."""
    stamp = _u64_at(page)
    word = _u64_at(page + 8)
    end = page + HEADER + (word & COMMIT_MASK)
    lost: u16 = u16(1) if word & MISSED_EVENTS != 0 else u16(0)
    if end > page + size:
        return DAMAGED
    at = page + HEADER
    count: u64 = 0
    while at + 8 <= end:
        head = _u32_at(at)
        kind = head & 31
        delta = u64(head >> 5)
        if kind == TIME_STAMP:
            low = delta | u64(_u32_at(at + 4)) << DELTA_BITS
            before = stamp
            stamp = before & ~_STAMP_LOW | low
            if stamp < before:
                stamp += _STAMP_LOW + 1
            at += 8
        elif kind == TIME_EXTEND:
            stamp += delta | u64(_u32_at(at + 4)) << DELTA_BITS
            at += 8
        else:
            if kind == PADDING and delta == 0:
                return count
            stamp += delta
            start = at + 4
            length = u64(kind) * 4
            if kind == 0 or kind == PADDING:
                start = at + 8
                length = u64(_u32_at(at + 4)) - 4
            if length > size or start + length > end or (kind != PADDING and length < 8):
                return DAMAGED
            if kind != PADDING:
                each = addressof(found[count])
                each.stamp = stamp
                each.data = start
                each.length = u32(length)
                each.type = cast(ptr[u16], start)[0]
                each.tid = _u32_at(start + 4)
                each.lost = lost
                lost = 0
                count += 1
            at = start + length
    return count if at == end else DAMAGED


@native(bounded=False)
def note_returning(pairing: ptr[Pairing], found: ptr[RecordPlace], count: u64) -> u64:
    """Note the functions whose returns are among the records. Returns how many records were seen before a table was full."""
    for at in range(count):
        each = addressof(found[at])
        if pairing.kinds[each.type] == PROBE_RETURN and each.length >= u32(pairing.address_at[each.type]) + 8:
            ip = _u64_at(each.data + u64(pairing.address_at[each.type]))
            if ip != 0 and number_of(pairing.returning, ip) == 0:
                return at
    return count


@native(inline=True)
def _calls_around(thread: ptr[Thread], number: u64, place: u64) -> u64:
    """How many of the first calls in progress are left if those above this place are taken away."""
    while number != 0 and thread.frames[number - 1].place > place:
        number -= 1
    return number


@native(inline=True)
def _add_row(
    pairing: ptr[Pairing], thread: ptr[Thread], number: u64, leaving: u64, is_left: u64, ax: u64, leave: u64
) -> void:
    """A row for the call in progress of that number, which is removed."""
    rows = pairing.rows
    frame = addressof(thread.frames[number])
    at = rows.count
    rows.count = at + 1
    taken = cast(i64, leaving - frame.entered)
    rows.entered[at] = cast(i64, frame.entered) + pairing.offset
    rows.duration[at] = taken if is_left != 0 else i64(NO_DURATION)
    rows.own[at] = taken - cast(i64, frame.inner) if is_left != 0 else i64(NO_DURATION)
    rows.ax[at] = ax
    rows.tid[at] = u32(thread.tid)
    rows.function[at] = frame.function
    rows.stack[at] = frame.stack
    rows.depth[at] = frame.depth
    rows.origin[at] = u32(thread.origin)
    rows.leave[at] = u32(leave)
    if is_left == 0:
        rows.unfinished += 1
    elif frame.depth != 0:
        outer = _calls_around(thread, number, frame.outer)
        if outer != 0:
            thread.frames[outer - 1].inner += leaving - frame.entered
    thread.depth -= 1
    above = number
    while above != thread.depth:  # calls on another stack, which go on
        copy(addressof(thread.frames[above]), addressof(thread.frames[above + 1]))
        above += 1


@native(bounded=False)
def give_up(pairing: ptr[Pairing], thread: ptr[Thread], place: u64) -> u64:
    """Rows without durations for the calls in progress, from the innermost on while they are at `place` or above.

    Returns 0 if there was no space for all.
    """
    while thread.depth != 0 and thread.frames[thread.depth - 1].place >= place:
        if pairing.rows.count == pairing.rows.capacity:
            return 0
        _add_row(pairing, thread, thread.depth - 1, 0, 0, 0, 0)
    return 1


@native(inline=True)
def _stack_in(pairing: ptr[Pairing], thread: ptr[Thread], function: u32, around: u64) -> u32:
    """The number of the stack of a call that begins; 0 if it has none. 2^32 - 1 if the table has to grow."""
    outer: u32 = 0
    if around != 0:
        outer = thread.frames[around - 1].stack
        if outer == 0:
            return 0
    stacks = pairing.stacks
    found = number_of(stacks, u64(outer) << 32 | u64(function))
    if found == 0 and stacks.count < MOST_STACKS:
        return u32(0xFFFF_FFFF)
    return found


@native(inline=True)
def _enter(pairing: ptr[Pairing], thread: ptr[Thread], stamp: u64, ip: u64, place: u64, outer: u64) -> u64:
    """A call begins. Returns 0 if there is not enough space."""
    if thread.depth == thread.capacity:
        return 0
    function = number_of(pairing.functions, ip)
    if function == 0:
        return 0
    around = _calls_around(thread, thread.depth, outer)
    stack = _stack_in(pairing, thread, function, around)
    if stack == 0xFFFF_FFFF:
        return 0
    frame = addressof(thread.frames[thread.depth])
    frame.entered = stamp
    frame.inner = 0
    frame.ip = ip
    frame.place = place
    frame.outer = outer
    frame.depth = thread.frames[around - 1].depth + 1 if around != 0 else u32(0)
    frame.function = function
    frame.stack = stack
    thread.depth += 1
    return 1


@native(inline=True)
def _is_in_progress(thread: ptr[Thread], ip: u64) -> u64:
    at = thread.depth
    while at != 0:
        at -= 1
        if thread.frames[at].ip == ip:
            return 1
    return 0


@native(inline=True)
def _leave(pairing: ptr[Pairing], thread: ptr[Thread], stamp: u64, ip: u64, ax: u64) -> u64:
    """A call ends; those inside of which no return was seen have no durations. Returns 0 if there is not enough space."""
    while thread.frames[thread.depth - 1].ip != ip:
        if pairing.rows.count == pairing.rows.capacity:
            return 0
        _add_row(pairing, thread, thread.depth - 1, 0, 0, 0, 0)
    if pairing.rows.count == pairing.rows.capacity:
        return 0
    _add_row(pairing, thread, thread.depth - 1, stamp, 1, ax, 0)
    return 1


@native(inline=True)
def _leave_place(pairing: ptr[Pairing], thread: ptr[Thread], record: ptr[RecordPlace], at: u64, ip: u64) -> u64:
    """The call ends that has this place on the shadow stack: see `fprobe.report.nesting`. Returns 0 if there is no space."""
    word = _u32_at(record.data + _CALL_PLACE)
    place = u64(word >> 1 & MOST_PLACES)
    number = thread.depth
    while number != 0 and (thread.frames[number - 1].ip != ip or thread.frames[number - 1].place != place):
        number -= 1
    if number == 0:
        return 1
    is_newest = word & 1 == 0
    if is_newest and give_up(pairing, thread, place + 1) == 0:
        return 0
    if pairing.rows.count == pairing.rows.capacity:
        return 0
    _add_row(pairing, thread, number - 1, record.stamp, 1, _u64_at(record.data + _AX), at + 1)
    return 1


@native(inline=True)
def _left_alone(pairing: ptr[Pairing], thread: ptr[Thread], record: ptr[RecordPlace], ip: u64) -> u64:
    """A funcgraph_exit whose entry is missing has the time of the call. Returns 0 if there is not enough space."""
    rows = pairing.rows
    function = number_of(pairing.functions, ip)
    if rows.count == rows.capacity or function == 0:
        return 0
    entered = _u64_at(record.data + _GRAPH_CALLTIME)
    at = rows.count
    rows.count = at + 1
    rows.entered[at] = cast(i64, entered) + pairing.offset
    rows.duration[at] = cast(i64, record.stamp - entered)
    rows.own[at] = i64(NO_DURATION)
    rows.ax[at] = _u64_at(record.data + _AX)
    rows.tid[at] = record.tid
    rows.function[at] = function
    rows.stack[at] = 0
    rows.depth[at] = _u32_at(record.data + _GRAPH_DEPTH)
    rows.origin[at] = u32(thread.origin)
    rows.leave[at] = 0
    rows.unfinished += 1
    return 1


@native(bounded=False)
def pair(pairing: ptr[Pairing], thread: ptr[Thread], found: ptr[RecordPlace], first: u64, count: u64) -> u64:
    """Make calls of the records of a slot from the record `first` on. Returns how far that went before space was missing.

    Calls of which records may be missing are given up: a later return could be another call's.
    """
    at = first
    while at < count:
        each = addressof(found[at])
        kind = pairing.kinds[each.type]
        if thread.tid != u64(each.tid) or each.lost != 0:
            if give_up(pairing, thread, 0) == 0:
                return at
            thread.tid = u64(each.tid)
        if kind != OTHER and each.length >= u32(pairing.address_at[each.type]) + 8:
            ip = _u64_at(each.data + u64(pairing.address_at[each.type]))
            done: u64 = 1
            if kind == GRAPH_ENTRY and each.length >= _ENTRY_DEPTH + 4:
                level = u64(_u32_at(each.data + _ENTRY_DEPTH))
                done = give_up(pairing, thread, level)
                if done != 0:
                    done = _enter(pairing, thread, each.stamp, ip, level, level)
            elif kind == PROBE_ENTRY and is_in(pairing.returning, ip) != 0:
                done = _enter(pairing, thread, each.stamp, ip, 0, 0)
            elif kind >= CALL_ENTRY and each.length < _CALL_PLACE + 4:
                done = 1  # damaged
            elif kind == CALL_ENTRY:
                word = _u32_at(each.data + _CALL_PLACE)
                place = u64(word >> 1 & MOST_PLACES)
                done = give_up(pairing, thread, place)
                if done != 0:
                    done = _enter(pairing, thread, each.stamp, ip, place, u64(word >> OUTER_AT))
            elif kind == CALL_RETURN:
                done = _leave_place(pairing, thread, each, at, ip)
            elif kind != PROBE_ENTRY and kind != GRAPH_ENTRY:
                if _is_in_progress(thread, ip) != 0:
                    ax: u64 = _u64_at(each.data + _AX) if kind == GRAPH_EXIT and each.length >= _AX + 8 else u64(0)
                    done = _leave(pairing, thread, each.stamp, ip, ax)
                elif kind == GRAPH_EXIT and each.length >= _GRAPH_CALLTIME + 16:
                    done = _left_alone(pairing, thread, each, ip)
            if done == 0:
                return at
        at += 1
    return count


@native(bounded=False)
def records_of_type(
    found: ptr[RecordPlace], count: u64, wanted: u64, times: ptr[i64], offset: i64, chosen: ptr[u32]
) -> u64:
    """The indices of the records of a type, and their times. Returns their number."""
    number: u64 = 0
    for at in range(count):
        if u64(found[at].type) == wanted:
            chosen[number] = u32(at)
            times[number] = cast(i64, found[at].stamp) + offset
            number += 1
    return number


@native(bounded=False)
def after_losses(found: ptr[RecordPlace], count: u64, chosen: ptr[u32]) -> u64:
    """The indices of the records before which others are missing. Returns their number."""
    number: u64 = 0
    for at in range(count):
        if found[at].lost != 0:
            chosen[number] = u32(at)
            number += 1
    return number


@native(bounded=False)
def gather(found: ptr[RecordPlace], chosen: ptr[u32], count: u64, at: u64, size: u64, out: ptr[u8]) -> void:
    """A field of `size` bytes of the chosen records, one after the other; 0 where a record is too short."""
    for number in range(count):
        each = addressof(found[chosen[number]])
        for byte in range(size):
            value: u8 = 0
            if at + size <= u64(each.length):
                value = cast(ptr[u8], each.data + at + byte)[0]
            out[number * size + byte] = value


@native(bounded=False)
def other_types(pairing: ptr[Pairing], found: ptr[RecordPlace], count: u64, seen: ptr[u8], out: ptr[u16]) -> u64:
    """The types of the records that are more than an entry or a return. Returns their number. `seen`: all 0."""
    number: u64 = 0
    for at in range(count):
        each = found[at].type
        kind = pairing.kinds[each]
        if kind <= PROBE_RETURN and seen[each] == 0:
            seen[each] = 1
            out[number] = each
            number += 1
    for at in range(number):
        seen[out[at]] = 0
    return number


@native(bounded=False)
def locate_all(pages: u64, size: u64, page_size: u64, found: ptr[RecordPlace]) -> u64:
    """The records of consecutive sub-buffers of a slot, `size` bytes together: see `locate`."""
    count: u64 = 0
    at: u64 = 0
    while at < size:
        number = locate(pages + at, page_size, addressof(found[count]))
        if number == DAMAGED:
            return DAMAGED
        count += number
        at += page_size
    return count


_FUNCTIONS = (
    locate_all, number_of, refill, is_in, note_returning, give_up, pair, records_of_type, after_losses, gather,
    other_types,
)  # fmt: skip


@once
def image() -> NativeImage:
    """The functions of this module as machine code; compiled once, and kept in the object cache."""
    return NativeImage.of(Unit("fprobe-columns", list(_FUNCTIONS), bounded=False))
