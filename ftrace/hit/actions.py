"""Built-in handlers: count, record, stat. Native; each thread has its own memory for results."""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import clock_now, scaled_by
from ftrace.hit.ring_buffer.records import Mark, Reservation, Ring, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve
from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    extern,
    fn,
    global_var,
    i32,
    leading_zeros,
    likely,
    load,
    native,
    null,
    ptr,
    rdtsc,
    struct,
    u32,
    u64,
    void,
    volatile_load,
    zeroed,
)
from sandbox.threads.tasks import current

RECORD_SIZE = 32
CALL = 19
"""The type of a call's record, below those of events."""
CELL_SIZE = 64
DURATIONS = 256
"""Buckets of a histogram of durations: four for each power of two."""
TIMED_CELL_SIZE = CELL_SIZE + 4 * DURATIONS

tracing_switch = global_var(u64, 1, name="tracing_on")
"""Whether records are kept: 0 or 1 (ftrace.tracing.files.tracing_on)."""


@struct
class ActionState(Structure):
    """The memory of an action's results: one area per task, `stride` bytes apart."""

    base: u64
    stride: u64
    mask: u64  # number of cells in an area, less one
    shift: u64  # 64 less the number of bits of a cell's index
    cell_size: u64  # in bytes


@struct
class CallRecord(Structure):
    """A call: what `record` writes to its buffer. The record's time stamp says when the call returned."""

    common: u64
    entered: u64  # by the buffer's clock
    ip: u64
    caller: u64


@struct
class Cell(Structure):
    """The statistics of one function in one thread."""

    ip: u64
    hits: u64
    missed: u64  # calls without a return node: not timed
    ticks: u64
    shortest: u64  # ticks of the shortest call, plus one; 0: none was timed
    longest: u64
    returned: u64  # calls that were timed
    reserved: u64


@struct
class TimedCell(Structure):
    """The same with a histogram of durations."""

    cell: Cell
    durations: array[u32, 256]


@native(inline=True)
def action_of(probe: ptr[Probe]) -> ptr[ActionState]:
    return cast(ptr[ActionState], probe.action)


@native(inline=True)
def area_of(state: ptr[ActionState]) -> u64:
    return state.base + cast(u64, current().index) * state.stride


@native(cc="preserve_most")
def count_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    """Nothing to do: every hit is counted anyway."""
    return 0


clock_slowly = extern("ftrace_action_clock", fn[u64, ptr[Ring]], cc="preserve_most")


@native(inline=True)
def clock_of(ring: ptr[Ring]) -> u64:
    """The time by the clock of a ring, as its records are stamped."""
    clock = ring.clock
    sequence = volatile_load(addressof(clock.sequence))
    stamp = scaled_by(clock, sequence)
    if likely(volatile_load(addressof(clock.sequence)) == sequence and ring.is_scaled != 0):
        return stamp
    return clock_slowly(ring)


@native(cc="preserve_most", noinline=True, name="ftrace_action_clock")
def read_clock_slowly(ring: ptr[Ring]) -> u64:
    return clock_now(ring.clock)


@native(cc="preserve_most")
def record_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    if data != null:
        data[0] = clock_of(volatile_load(addressof(cast(ptr[RingBuffer], probe.action).live)))
    return 0


@native(cc="preserve_most")
def record_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    """Record the call, stamped by the time of its return."""
    if load(addressof(tracing_switch), "relaxed") == 0:
        return
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(cast(ptr[RingBuffer], probe.action), addressof(mark), addressof(place), CALL, RECORD_SIZE):
        record = cast(ptr[CallRecord], place.event)
        record.entered = data[0]
        record.ip = ip
        record.caller = ret_ip
        commit(addressof(mark), addressof(place))


@native
def cell_of(state: ptr[ActionState], ip: u64) -> ptr[Cell]:
    """The thread's cell for the function at `ip`; there are twice as many cells as functions."""
    area = area_of(state)
    index = first_place(ip, state.shift)
    cell = cast(ptr[Cell], area + index * state.cell_size)
    while cell.ip != ip:
        if cell.ip == 0:
            cell.ip = ip
            return cell
        index = (index + 1) & state.mask
        cell = cast(ptr[Cell], area + index * state.cell_size)
    return cell


@native(cc="preserve_most")
def stat_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    cell = cell_of(action_of(probe), ip)
    cell.hits += 1
    if data == null:
        cell.missed += 1
    else:
        data[0] = rdtsc()
    return 0


@native(inline=True)
def add_duration(cell: ptr[Cell], ticks: u64) -> void:
    cell.ticks += ticks
    cell.returned += 1
    if ticks + 1 < cell.shortest or cell.shortest == 0:
        cell.shortest = ticks + 1
    if ticks > cell.longest:
        cell.longest = ticks


@native(cc="preserve_most")
def stat_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    ticks = rdtsc() - data[0]
    add_duration(cell_of(action_of(probe), ip), ticks)


@native
def bucket_of(ticks: u64) -> u64:
    """The number of a duration's bucket: the power of two, and the two bits below the highest."""
    if ticks < 4:
        return ticks
    power = 63 - leading_zeros(ticks)
    return (power - 1) * 4 + (ticks >> (power - 2) & 3)


@native(cc="preserve_most")
def stat_hist_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    ticks = rdtsc() - data[0]
    cell = cell_of(action_of(probe), ip)
    add_duration(cell, ticks)
    cast(ptr[TimedCell], cell).durations[bucket_of(ticks)] += 1


@native
def read_tsc() -> u64:
    return rdtsc()


HANDLERS = (read_clock_slowly, count_entry, record_entry, record_exit, stat_entry, stat_exit, stat_hist_exit, read_tsc)
