"""Sets of thread ids that hits look into while they change: a bit for each id. kernel/trace/pid_list.c."""

from __future__ import annotations

from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_and,
    atomic_or,
    bool_,
    cast,
    load,
    native,
    ptr,
    struct,
    u64,
    void,
)

PIDS = 1 << 22
"""Every thread's id is less: PID_MAX_LIMIT in include/linux/threads.h."""


@struct
class PidList(Structure):
    """Bit i of the bits is set if the thread with the id i is in the set."""

    bits: array[u64, 65536]


@native(inline=True)
def is_listed(pids: ptr[PidList], pid: u64) -> bool_:
    """trace_pid_list_is_set()."""
    return load(addressof(pids.bits[pid >> 6]), "relaxed") >> (pid & 63) & 1 != 0


@native
def trace_pid_list_set(pids: ptr[PidList], pid: u64) -> void:
    atomic_or(addressof(pids.bits[pid >> 6]), cast(u64, 1) << (pid & 63))


@native
def trace_pid_list_clear(pids: ptr[PidList], pid: u64) -> void:
    if is_listed(pids, pid):  # most are not, and their memory has never been touched
        atomic_and(addressof(pids.bits[pid >> 6]), ~(cast(u64, 1) << (pid & 63)))


FUNCTIONS = (trace_pid_list_set, trace_pid_list_clear)
