"""Which stack a return slot is on: coroutines and signal handlers have stacks of their own.

Used only where a newer call's slot is above an older one's, which on one stack means that the older call never returned. The
thread's own stack is known exactly; for two slots elsewhere it is unknown whether they share a stack.
"""

from __future__ import annotations

from sandbox.native import addressof, array, bool_, cast, global_var, i64, native, read_fs, syscall, u64, zeroed
from sandbox.x86_64.syscalls import SYS_RT_SIGPROCMASK, SYS_SIGALTSTACK

_EFAULT = -14
_ON_STACK = 1

stack_field = global_var(u64, 0, name="stack_field")
"""Offset from %fs of the word with the lowest address of a thread's stack, which the size follows; 0 if unknown."""
main_stack = global_var(u64, 0, name="main_stack")
main_stack_size = global_var(u64, 0, name="main_stack_size")
"""The same for the process's first thread, which has neither word."""


@native
def readable(address: u64) -> bool_:
    """Whether the aligned word at `address` can be read: rt_sigprocmask reads the mask before it checks `how`.

    A null mask is not read: the first word of memory counts as unreadable.
    """
    return address > 7 and syscall(SYS_RT_SIGPROCMASK, -1, cast(i64, address & ~cast(u64, 7)), 0, 8, 0, 0) != _EFAULT


@native
def beyond_signal_stack(address: u64) -> bool_:
    """Whether this thread runs on an alternate signal stack and `address` is not on that."""
    stack: array[u64, 3] = zeroed  # sp, flags, size
    syscall(SYS_SIGALTSTACK, 0, cast(i64, addressof(stack[0])), 0, 0, 0, 0)
    return stack[1] & _ON_STACK != 0 and (address < stack[0] or address >= stack[0] + stack[2])


@native
def off_signal_stack(address: u64) -> bool_:
    """Whether `address` is on this thread's alternate signal stack, and the thread is not."""
    stack: array[u64, 3] = zeroed  # sp, flags, size
    syscall(SYS_SIGALTSTACK, 0, cast(i64, addressof(stack[0])), 0, 0, 0, 0)
    return stack[1] & _ON_STACK == 0 and stack[0] <= address and address < stack[0] + stack[2]


@native
def on_own_stack(address: u64) -> bool_:
    """Whether `address` is in the memory that this thread was started with as its stack."""
    start = read_fs(stack_field)
    size = read_fs(stack_field + 8)
    if start == 0:
        start = main_stack
        size = main_stack_size
    return address - start < size


@native
def on_one_stack(low: u64, high: u64) -> bool_:
    """Whether two slots, of which `high` is on the running stack, are known to be on the same one: the thread's own."""
    return stack_field != 0 and on_own_stack(low) and on_own_stack(high) and not beyond_signal_stack(low)
