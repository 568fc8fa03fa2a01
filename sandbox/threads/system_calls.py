"""Native: system calls of the running thread: its name, its signal mask, a short sleep, a barrier for all threads."""

from __future__ import annotations

from sandbox.memory.pages import PAGE
from sandbox.native import *
from sandbox.x86_64.syscalls import (
    SYS_CLOCK_GETTIME,
    SYS_MEMBARRIER,
    SYS_MPROTECT,
    SYS_NANOSLEEP,
    SYS_PRCTL,
    SYS_RT_SIGPROCMASK,
)

_BLOCK, _UNBLOCK, _SETMASK = 0, 1, 2
_MASK_SIZE = 8
"""Bytes of a mask; its bit n - 1 is signal n."""
TASK_COMM_LEN = 16
"""Bytes of a name, with its final 0."""
_PR_GET_NAME = 16
_NAP = 50_000
"""Nanoseconds."""
_CLOCK_MONOTONIC = 1
_PRIVATE_EXPEDITED = 8
_READ, _READ_WRITE = 1, 3
barrier_page = global_var(u64, 0, name="barrier_page")
"""sandbox.memory.pages.barrier_page()"""


@native
def change_mask(how: i64, mask: u64) -> u64:
    """rt_sigprocmask; returns the previous mask."""
    masks: array[u64, 2] = zeroed
    masks[0] = mask
    old = cast(i64, addressof(masks[1]))
    syscall(SYS_RT_SIGPROCMASK, how, cast(i64, addressof(masks[0])), old, _MASK_SIZE, 0, 0)
    return masks[1]


@native
def block_signals(mask: u64) -> u64:
    """Block the signals of `mask` too; returns the previous mask."""
    return change_mask(_BLOCK, mask)


@native
def unblock_signals(mask: u64) -> u64:
    """Unblock the signals of `mask`; returns the previous mask."""
    return change_mask(_UNBLOCK, mask)


@native
def set_signal_mask(mask: u64) -> u64:
    """Block exactly the signals of `mask`; returns the previous mask."""
    return change_mask(_SETMASK, mask)


@native
def get_task_comm(name: ptr[u8]) -> u64:
    """Store the running thread's name, TASK_COMM_LEN bytes, and return that length."""
    syscall(SYS_PRCTL, _PR_GET_NAME, cast(u64, name), 0, 0, 0, 0)
    return TASK_COMM_LEN


@native
def nap() -> void:
    """Sleep for a short time, for polling."""
    time: array[u64, 2] = zeroed
    time[0] = 0
    time[1] = _NAP
    syscall(SYS_NANOSLEEP, cast(i64, addressof(time[0])), 0, 0, 0, 0, 0)


@native
def process_barrier() -> void:
    """The slow side of an asymmetric barrier. The fast side, on the hit path, is a plain store followed by a plain load.

    Every store that another thread made before now is seen, and every load it makes after is made after. Without membarrier(2),
    a page is written to and made read-only, which interrupts every core that runs a thread of the process. Several threads may
    do so at once: the page is written by a system call, so that finding it read-only gives an error instead of a fault.
    """
    if barrier_page == 0:
        syscall(SYS_MEMBARRIER, _PRIVATE_EXPEDITED, 0, 0, 0, 0, 0)
        return
    syscall(SYS_MPROTECT, barrier_page, PAGE, _READ_WRITE, 0, 0, 0)
    while syscall(SYS_CLOCK_GETTIME, _CLOCK_MONOTONIC, barrier_page, 0, 0, 0, 0) != 0:
        syscall(SYS_MPROTECT, barrier_page, PAGE, _READ_WRITE, 0, 0, 0)
    syscall(SYS_MPROTECT, barrier_page, PAGE, _READ, 0, 0, 0)
