"""Native handlers that record calls with their values, and wait for the reader where the buffer is nearly full."""

from __future__ import annotations

from fprobe.handlers.native import native
from ftrace.hit.call_records import ENTRY, EXIT, entry_values, result_values
from ftrace.hit.call_values import FunctionPlan, ValuePlans, error_number, values_plan
from ftrace.hit.nodes import place_at_entry, place_at_return
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.records import Mark, Reservation, Ring, RingBuffer, slot_at
from ftrace.hit.ring_buffer.writer import commit, reserve, shorten
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_add,
    bool_,
    cast,
    i32,
    i64,
    null,
    ptr,
    struct,
    syscall,
    u64,
    void,
    volatile_load,
    zeroed,
)
from sandbox.threads.tasks import current
from sandbox.x86_64.syscalls import SYS_NANOSLEEP

_PAUSE_NS = 50_000


@struct
class Capture(Structure):
    """The handlers' state, which `action` of their probe points to."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    others: FunctionPlan  # of functions that are not in the table
    plans: ValuePlans  # without a CallTable
    limit: u64  # calls that are recorded; 0: all
    calls: u64  # so far, if there is a limit
    patience: u64  # how often a thread waits for the reader before records are lost


@native(inline=True)
def plan_of(state: ptr[Capture], ip: u64) -> ptr[FunctionPlan]:
    """The entry of a function in the table, or `others`."""
    plan = values_plan(addressof(state.plans), ip)
    return plan if plan != null else addressof(state.others)


@native(inline=True)
def is_nearly_full(ring: ptr[Ring]) -> bool_:
    return volatile_load(addressof(slot_at(ring, cast(u64, current().index)).pages)) + 1 >= ring.max_pages


@native(bounded=False, cc="c")
def wait_for_reader(state: ptr[Capture]) -> void:
    """Wait while the thread's part of the buffer is nearly full, up to `patience` pauses."""
    time: array[u64, 2] = zeroed
    time[1] = _PAUSE_NS
    for _attempt in range(volatile_load(addressof(state.patience))):
        ring = volatile_load(addressof(state.buffer.ring))
        if ring == null or not is_nearly_full(ring) or volatile_load(addressof(state.patience)) == 0:
            return
        syscall(SYS_NANOSLEEP, cast(i64, addressof(time[0])), 0, 0, 0, 0, 0)


@native(inline=True)
def has_place(
    state: ptr[Capture], mark: ptr[Mark], place: ptr[Reservation], kind: u64, length: u64, ip: u64, value: u64, at: u64
) -> bool_:
    """Reserve a record and begin it. `at`: as place_at_return()."""
    ring = volatile_load(addressof(state.buffer.ring))
    if ring != null and is_nearly_full(ring):
        wait_for_reader(state)
    if not reserve(state.buffer, mark, place, kind, length):
        return False
    record = cast(ptr[u64], place.event)
    record[1] = ip
    record[2] = value
    record[3] = at
    return True


@native(bounded=False)
def capture_entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """Record the entry. Beyond the limit, only count the call, and cancel its exit handler."""
    state = cast(ptr[Capture], fp.action)
    if volatile_load(state.tracing_on) == 0:
        return 0
    if state.limit != 0 and atomic_add(addressof(state.calls), 1, "relaxed") >= state.limit:
        return 1
    plan = addressof(plan_of(state, ip).entry)
    at = place_at_entry(current(), regs.sp, ip)
    mark: Mark = zeroed
    place: Reservation = zeroed
    if has_place(state, addressof(mark), addressof(place), ENTRY, plan.length, ip, ret_ip, at):
        record = cast(ptr[u64], place.event)
        shorten(addressof(place), plan.length, entry_values(record, plan, regs, null))
        commit(addressof(mark), addressof(place))
    return 0


@native(bounded=False)
def capture_exit(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> void:
    """Record the return."""
    error = error_number(current())
    state = cast(ptr[Capture], fp.action)
    if volatile_load(state.tracing_on) == 0:
        return
    plan = addressof(plan_of(state, ip).leave)
    at = place_at_return(current(), regs.sp - 8, ip)
    mark: Mark = zeroed
    place: Reservation = zeroed
    if has_place(state, addressof(mark), addressof(place), EXIT, plan.length, ip, regs.ax, at):
        record = cast(ptr[u64], place.event)
        shorten(addressof(place), plan.length, result_values(record, plan, regs, null, error))
        commit(addressof(mark), addressof(place))
