"""Built-in handlers: count, record, stat. Native; each thread has its own memory for results."""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from ftrace.hit.records import Probe
from sandbox.native import (
    Structure,
    addressof,
    cast,
    global_var,
    i32,
    load,
    native,
    null,
    ptr,
    rdtsc,
    struct,
    u64,
    void,
)
from sandbox.threads.tasks import current

RECORD_SIZE = 32
HEADER_SIZE = 64
CELL_SIZE = 32

tracing_switch = global_var(u64, 1, name="tracing_on")
"""Whether records are kept: 0 or 1 (ftrace.files.tracing_on)."""


@struct
class ActionState(Structure):
    """The memory of an action's results: one area per task, `stride` bytes apart."""

    base: u64
    stride: u64
    mask: u64  # number of records or cells in an area, less one
    shift: u64  # 64 less the number of bits of a cell's index


@struct
class Record(Structure):
    """A call, in a thread's buffer: `record`."""

    entered: u64  # time-stamp counter
    left: u64
    ip: u64
    caller: u64


@struct
class Cell(Structure):
    """What `stat` knows of one function, in one thread."""

    ip: u64
    hits: u64
    missed: u64  # calls without a return node: not timed
    ticks: u64


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


@native(cc="preserve_most")
def record_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    if data != null:
        data[0] = rdtsc()
    return 0


@native(cc="preserve_most")
def record_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    """Append to the thread's ring; the oldest record gives way."""
    left = rdtsc()
    if load(addressof(tracing_switch), "relaxed") == 0:
        return
    state = action_of(probe)
    area = cast(ptr[u64], area_of(state))
    head = area[0]
    place = HEADER_SIZE + (head & state.mask) * RECORD_SIZE
    record = cast(ptr[Record], addressof(area[place >> 3]))
    record.entered = data[0]
    record.left = left
    record.ip = ip
    record.caller = ret_ip
    area[0] = head + 1


@native
def cell_of(state: ptr[ActionState], ip: u64) -> ptr[Cell]:
    """The thread's cell for the function at `ip`; there are twice as many cells as functions."""
    area = cast(ptr[Cell], area_of(state))
    index = first_place(ip, state.shift)
    while area[index].ip != ip:
        if area[index].ip == 0:
            area[index].ip = ip
            return addressof(area[index])
        index = (index + 1) & state.mask
    return addressof(area[index])


@native(cc="preserve_most")
def stat_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    cell = cell_of(action_of(probe), ip)
    cell.hits += 1
    if data == null:
        cell.missed += 1
    else:
        data[0] = rdtsc()
    return 0


@native(cc="preserve_most")
def stat_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> void:
    ticks = rdtsc() - data[0]
    cell = cell_of(action_of(probe), ip)
    cell.ticks += ticks


@native
def read_tsc() -> u64:
    return rdtsc()


HANDLERS = (count_entry, record_entry, record_exit, stat_entry, stat_exit, read_tsc)
