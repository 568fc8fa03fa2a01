"""Native handlers that record calls with registers, stack, and the targets of pointers.

For each function, `NativeParts` say what to record at the entry, others at the return; both are found by entry address.
"""

from __future__ import annotations

from fprobe.handlers.native import native
from ftrace.core.handlers.floats import save_xmm
from ftrace.hit.hashing import first_place
from ftrace.hit.nodes import place_at_entry, place_at_return
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.records import Mark, Reservation, Ring, RingBuffer, slot_at
from ftrace.hit.ring_buffer.writer import commit, reserve
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
    probe_read,
    probe_read_str,
    ptr,
    struct,
    syscall,
    u8,
    u64,
    void,
    volatile_load,
    zeroed,
)
from sandbox.threads.tasks import current
from sandbox.x86_64.syscalls import SYS_NANOSLEEP

ENTRY, EXIT = 1, 2
"""Types of the records."""
HEAD, REGISTERS, VECTORS = 32, 21 * 8, 8 * 16
"""Bytes: common fields, entry, caller and place; pt_regs; the lower 16 bytes of eight vector registers."""
MAX_FOLLOWED = 32
FOLLOW_SHIFT, FOLLOW_MASK = 32, (1 << 31) - 1
"""A followed pointer: its offset in the record, whether it is text (bit 31), and the bytes to record."""
TEXT = 1 << 31
_LOWEST, _HIGHEST = 1 << 12, 1 << 47
_PAUSE_NS = 50_000


@struct
class NativeParts(Structure):
    """The parts of a function's entry, or of its return, to record."""

    length: u64  # of the record
    vectors: u64  # 1: vector registers too
    stack: u64  # bytes above the return address
    count: u64  # pointers that are followed
    follow: array[u64, 32]


@struct
class FunctionPlan(Structure):
    """A function, in a hash table."""

    ip: u64  # 0: none
    entry: ptr[NativeParts]
    leave: ptr[NativeParts]


@struct
class Capture(Structure):
    """The handlers' state, which `action` of their probe points to."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    others: FunctionPlan  # of functions that are not in the table
    plans: ptr[FunctionPlan]
    mask: u64
    shift: u64
    limit: u64  # calls that are recorded; 0: all
    calls: u64  # so far, if there is a limit
    patience: u64  # how often a thread waits for the reader before records are lost


@native(inline=True, bounded=False)
def plan_of(state: ptr[Capture], ip: u64) -> ptr[FunctionPlan]:
    """The entry of a function in the table, or `others`."""
    index = first_place(ip, state.shift)
    while state.plans[index].ip != ip and state.plans[index].ip != 0:
        index = (index + 1) & state.mask
    return addressof(state.plans[index]) if state.plans[index].ip != 0 else addressof(state.others)


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


@native(bounded=False, cc="c")
def follow(parts: ptr[NativeParts], record: ptr[u8], at: u64) -> void:
    """Append the targets of pointers in the record: the number of bytes (negative for a fault), then the bytes."""
    for number in range(parts.count):
        what = parts.follow[number]
        address = cast(ptr[u64], addressof(record[what >> FOLLOW_SHIFT]))[0]
        size = what & FOLLOW_MASK
        length: i64 = -1
        if address >= _LOWEST and address < _HIGHEST:
            if what & TEXT != 0:
                length = probe_read_str(addressof(record[at + 8]), address, size)
            else:
                length = probe_read(addressof(record[at + 8]), address, size)
        cast(ptr[i64], addressof(record[at]))[0] = length
        at += 8 + (size + 7 & ~7)


@native(inline=True)
def take(
    state: ptr[Capture], parts: ptr[NativeParts], kind: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], at_place: u64
) -> void:
    """Record an entry or a return. `at_place`: as place_at_return()."""
    ring = volatile_load(addressof(state.buffer.ring))
    if ring != null and is_nearly_full(ring):
        wait_for_reader(state)
    mark: Mark = zeroed
    place: Reservation = zeroed
    if not reserve(state.buffer, addressof(mark), addressof(place), kind, parts.length):
        return
    record = place.event
    words = cast(ptr[u64], record)
    words[1] = ip
    words[2] = ret_ip
    words[3] = at_place
    held = cast(ptr[u64], regs)
    for index in range(21):
        words[4 + index] = held[index]
    at: u64 = HEAD + REGISTERS
    if parts.vectors != 0:
        save_xmm(addressof(record[at]))
        at += VECTORS
    if parts.stack != 0:
        probe_read(addressof(record[at]), regs.sp + 8, parts.stack)
        at += parts.stack
    if parts.count != 0:
        follow(parts, record, at)
    commit(addressof(mark), addressof(place))


@native(bounded=False)
def capture_entry(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """Record the entry. Beyond the limit, only count the call, and cancel its exit handler."""
    state = cast(ptr[Capture], fp.action)
    if volatile_load(state.tracing_on) == 0:
        return 0
    if state.limit != 0 and atomic_add(addressof(state.calls), 1, "relaxed") >= state.limit:
        return 1
    take(state, plan_of(state, ip).entry, ENTRY, ip, ret_ip, regs, place_at_entry(current(), regs.sp, ip) << 1)
    return 0


@native(bounded=False)
def capture_exit(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: u64) -> void:
    """Record the return."""
    state = cast(ptr[Capture], fp.action)
    if volatile_load(state.tracing_on) == 0:
        return
    take(state, plan_of(state, ip).leave, EXIT, ip, ret_ip, regs, place_at_return(current(), regs.sp - 8, ip))
