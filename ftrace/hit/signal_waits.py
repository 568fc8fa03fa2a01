"""Native: SIGTRAP while a thread waits that has blocked it, as far as the program knows; the kernel has not (signal_masks).

A wait with a mask, such as ppoll(), may open SIGTRAP for its duration; sigwait() and its like take it without a handler. In both,
one that was sent before counts, so the kernel gets it anew, blocked in earnest until the system call has taken it. Breakpoints
in between would end the process: the code in between is ours.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.signals import (
    SIGTRAP,
    TRAP_BLOCKED,
    TRAP_PENDING,
    awaiting_trap,
    blocked_epoch,
    blocked_offset,
    pending_trap,
)
from sandbox.threads.system_calls import block_signals, unblock_signals
from sandbox.x86_64.syscalls import SYS_GETPID, SYS_GETTID, SYS_TGKILL

OPENED, AWAITED = 1, 2
"""What a wait has changed: the thread's word; who awaits SIGTRAP. 0: nothing."""


@native(inline=True)
def own_word() -> ptr[u64]:
    """What the program has asked for in this thread (ftrace.hit.x86_64.signal_masks)."""
    return cast(ptr[u64], read_fs(0) + blocked_offset)


@native
def has_blocked_trap() -> bool_:
    return blocked_offset != 0 and own_word()[0] & ~TRAP_PENDING == blocked_epoch | TRAP_BLOCKED


@native
def own_number() -> u64:
    return cast(u64, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))


@native
def send_pending() -> void:
    """Send this thread the SIGTRAP that the program has pending, if it has one. It stays pending: it is blocked."""
    is_own = atomic_and(own_word(), ~cast(u64, TRAP_PENDING)) & TRAP_PENDING != 0
    if is_own or atomic_exchange(addressof(pending_trap), 0) != 0:
        block_signals(TRAP_BLOCKED)
        syscall(SYS_TGKILL, syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0), cast(i64, own_number()), SIGTRAP, 0, 0, 0)


@native(export=True)
def begin_open_wait() -> u64:
    """A wait begins whose mask does not block SIGTRAP. Returns what `end_wait` gives back."""
    if not has_blocked_trap():
        return 0
    block_signals(TRAP_BLOCKED)  # what comes before the system call is to interrupt it
    send_pending()
    atomic_and(own_word(), ~cast(u64, TRAP_BLOCKED))
    return OPENED


@native(export=True)
def begin_trap_wait() -> u64:
    """A wait for signals, SIGTRAP among them, begins. Returns what `end_wait` gives back."""
    if not has_blocked_trap():
        return 0
    atomic_exchange(addressof(awaiting_trap), own_number())
    send_pending()
    return AWAITED


@native(export=True)
def end_wait(changed: u64) -> void:
    if changed == OPENED:
        atomic_or(own_word(), TRAP_BLOCKED)
    else:
        atomic_cas(addressof(awaiting_trap), own_number(), 0, "acq_rel")
    unblock_signals(TRAP_BLOCKED)


@native(export=True)
def is_trap_pending() -> u64:
    """The bit of SIGTRAP in a mask, if the program has one pending in this thread; 0: it has not."""
    if not has_blocked_trap():
        return 0
    is_pending = own_word()[0] & TRAP_PENDING != 0 or load(addressof(pending_trap), "relaxed") != 0
    return TRAP_BLOCKED if is_pending else 0


FUNCTIONS = (is_trap_pending, begin_open_wait, begin_trap_wait, end_wait)
