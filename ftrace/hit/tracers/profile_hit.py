"""Native handlers of the function profiler, as in kernel/trace/ftrace.c.

They count in an account; a cell has the sum of squares, too.
"""

from __future__ import annotations

from ftrace.hit.account import Account, Cell, cell_of_function, count_return, row_of, self_time
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import ClockState, clock_now
from ftrace.hit.tracers.graph_hit import slept
from sandbox.native import *


@struct
class Profile(Structure):
    """The calls of one function: struct ftrace_profile. Times are in nanoseconds."""

    cell: Cell
    time_squared: u64


PROFILE = 72
assert Profile.size == PROFILE


@struct
class ProfileCall(Structure):
    """A call's data from its entry to its return."""

    calltime: u64
    inner: u64  # Row.inner at the entry


@struct
class ProfileState(Structure):
    """The account, and how times are measured."""

    account: Account
    clock: ptr[ClockState]
    no_graph_time: u64  # 1: times exclude nested calls
    no_sleep_time: u64  # 1: times exclude the time that the thread slept


@native(inline=True)
def time_now(state: ptr[ProfileState]) -> u64:
    now = clock_now(state.clock)
    if unlikely(volatile_load(addressof(state.no_sleep_time)) != 0):
        return now - slept()
    return now


@native(cc="preserve_most")
def profile_graph_entry(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[ProfileCall]) -> i32:
    state = cast(ptr[ProfileState], probe.action)
    cell = cell_of_function(addressof(state.account), PROFILE, ip)
    if cell == null:
        return 1
    cell.hits += 1
    if data == null:
        return 1
    data.inner = row_of(addressof(state.account)).inner
    data.calltime = time_now(state)
    return 0


@native(cc="preserve_most")
def profile_graph_return(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[ProfileCall]) -> void:
    state = cast(ptr[ProfileState], probe.action)
    time = time_now(state) - data.calltime
    without_inner = self_time(row_of(addressof(state.account)), data.inner, time)
    if volatile_load(addressof(state.no_graph_time)) != 0:
        time = without_inner
    cell = cell_of_function(addressof(state.account), PROFILE, ip)
    if cell != null:
        count_return(cell, time)
        cast(ptr[Profile], cell).time_squared += time * time


FUNCTIONS = (profile_graph_entry, profile_graph_return)
