"""Native handlers of the function profiler, as in kernel/trace/ftrace.c.

Each thread has its own table of functions.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import ClockState, clock_now
from ftrace.hit.tracers.graph_hit import slept
from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    i32,
    native,
    null,
    ptr,
    struct,
    u64,
    unlikely,
    void,
    volatile_load,
)
from sandbox.threads.tasks import current


@struct
class Profile(Structure):
    """Counts and times of one function: struct ftrace_profile. Times are in nanoseconds."""

    ip: u64
    counter: u64
    time: u64
    time_squared: u64
    returned: u64  # calls that `time` is of: not those without a return node, nor those that an exception has ended


@struct
class ProfileArea(Structure):
    """A thread's table. `nested`: time of calls that have returned, made by the call that is running."""

    nested: u64
    used: u64
    dropped: u64  # calls of functions for which the table had no cell
    reserved: array[u64, 5]
    cells: array[Profile, 1]


@struct
class ProfileCall(Structure):
    """A call's data from its entry to its return."""

    calltime: u64
    outer: u64  # ProfileArea.nested of the calling function's call


@struct
class ProfileState(Structure):
    """The tables of all threads, `stride` bytes apart."""

    base: u64
    stride: u64
    mask: u64  # number of cells minus 1
    shift: u64  # 64 minus the number of bits of a cell's index
    clock: ptr[ClockState]
    no_graph_time: u64  # 1: times exclude nested calls
    no_sleep_time: u64  # 1: times exclude the time that the thread slept


@native(inline=True)
def area_of(state: ptr[ProfileState]) -> ptr[ProfileArea]:
    return cast(ptr[ProfileArea], state.base + cast(u64, current().index) * state.stride)


@native(bounded=False)
def cell_of(state: ptr[ProfileState], area: ptr[ProfileArea], ip: u64) -> ptr[Profile]:
    """The thread's cell for the function at `ip`; null if it has none and three quarters of the cells are taken."""
    index = first_place(ip, state.shift)
    cells = cast(ptr[Profile], addressof(area.cells[0]))
    while cells[index].ip != ip:
        if cells[index].ip == 0:
            if area.used >= state.mask - state.mask // 4:
                return null
            area.used += 1
            cells[index].ip = ip
        else:
            index = (index + 1) & state.mask
    return addressof(cells[index])


@native(inline=True)
def time_now(state: ptr[ProfileState]) -> u64:
    now = clock_now(state.clock)
    if unlikely(volatile_load(addressof(state.no_sleep_time)) != 0):
        return now - slept()
    return now


@native(cc="preserve_most")
def profile_graph_entry(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[ProfileCall]) -> i32:
    state = cast(ptr[ProfileState], probe.action)
    area = area_of(state)
    cell = cell_of(state, area, ip)
    if cell == null:
        area.dropped += 1
        return 1
    cell.counter += 1
    if data == null:
        return 1
    data.outer = area.nested
    area.nested = 0
    data.calltime = time_now(state)
    return 0


@native(cc="preserve_most")
def profile_graph_return(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[ProfileCall]) -> void:
    state = cast(ptr[ProfileState], probe.action)
    area = area_of(state)
    time = time_now(state) - data.calltime
    nested = area.nested
    area.nested = data.outer + time
    if volatile_load(addressof(state.no_graph_time)) != 0:
        time = time - nested if time > nested else 0
    cell = cell_of(state, area, ip)
    if cell != null:
        cell.time += time
        cell.time_squared += time * time
        cell.returned += 1


FUNCTIONS = (profile_graph_entry, profile_graph_return)
