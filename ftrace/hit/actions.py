"""Built-in handlers: count, record, stat. Native; each thread has its own memory for results."""

from __future__ import annotations

from ftrace.hit.account import CELL, TIMED_CELL, Account, cell_of_function, count_duration, count_return
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import clock_now, scaled_by
from ftrace.hit.ring_buffer.records import Mark, Reservation, Ring, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve
from sandbox.native import *

RECORD_SIZE = 32
CALL = 19
"""The type of a call's record, below those of events."""
tracing_switch = global_var(u64, 1, name="tracing_on")
"""Whether records are kept: 0 or 1 (ftrace.tracing.files.tracing_on)."""


@struct
class CallRecord(Structure):
    """A call: what `record` writes to its buffer. The record's time stamp says when the call returned."""

    common: u64
    entered: u64  # by the buffer's clock
    ip: u64
    caller: u64


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
    stamp = scaled_by(clock, sequence, rdtsc())
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


@native(inline=True)
def count_call(probe: ptr[Probe], size: u64, ip: u64, data: ptr[u64]) -> void:
    """The data are the time of the entry; null: the return is not waited for."""
    cell = cell_of_function(cast(ptr[Account], probe.action), size, ip)
    if cell != null:
        cell.hits += 1
        if data == null:
            cell.missed += 1
    if data != null:
        data[0] = rdtsc()


@native(cc="preserve_most")
def stat_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    count_call(probe, CELL, ip, data)
    return 0


@native(cc="preserve_most")
def stat_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    ticks = rdtsc() - data[0]
    cell = cell_of_function(cast(ptr[Account], probe.action), CELL, ip)
    if cell != null:
        count_return(cell, ticks)


@native(cc="preserve_most")
def stat_hist_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    count_call(probe, TIMED_CELL, ip, data)
    return 0


@native(cc="preserve_most")
def stat_hist_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    ticks = rdtsc() - data[0]
    cell = cell_of_function(cast(ptr[Account], probe.action), TIMED_CELL, ip)
    if cell != null:
        count_duration(cell, ticks)


@native
def read_tsc() -> u64:
    return rdtsc()


HANDLERS = (
    *(read_clock_slowly, count_entry, record_entry, record_exit),
    *(stat_entry, stat_exit, stat_hist_entry, stat_hist_exit, read_tsc),
)
