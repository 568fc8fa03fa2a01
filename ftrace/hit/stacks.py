"""Which stack a return slot lies on: coroutines and signal handlers have stacks of their own.

Asked only where a newer call of a thread stands above an older one, which on one stack means that the older one never
returned.
"""

from __future__ import annotations

from sandbox.native import addressof, array, bool_, cast, i64, native, syscall, u64, zeroed

_SYS_RT_SIGPROCMASK, _SYS_SIGALTSTACK = 14, 131
_EFAULT = -14
_PAGE = 4096
_ON_STACK = 1
LARGEST = 1 << 22
"""Slots further apart than this, in bytes, are taken to be on different stacks."""


@native
def readable(address: u64) -> bool_:
    """Whether the aligned word at `address` can be read: the kernel looks at a signal mask before it looks at `how`.

    At no mask at all it looks at neither: the first word is never readable.
    """
    return address > 7 and syscall(_SYS_RT_SIGPROCMASK, -1, cast(i64, address & ~cast(u64, 7)), 0, 8, 0, 0) != _EFAULT


@native
def beyond_signal_stack(address: u64) -> bool_:
    """Whether this thread runs on an alternate signal stack and `address` is not on that."""
    stack: array[u64, 3] = zeroed  # sp, flags, size
    syscall(_SYS_SIGALTSTACK, 0, cast(i64, addressof(stack[0])), 0, 0, 0, 0)
    return stack[1] & _ON_STACK != 0 and (address < stack[0] or address >= stack[0] + stack[2])


@native
def on_one_stack(low: u64, high: u64) -> bool_:
    """Whether there is nothing but readable memory between two slots, of which `high` is on the running stack."""
    if high - low > LARGEST or beyond_signal_stack(low):
        return False
    page = low
    while page < high:
        if not readable(page):
            return False
        page += _PAGE
    return True
