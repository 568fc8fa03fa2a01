"""Native: the running thread's signal mask. Bit n - 1 is signal n."""

from __future__ import annotations

from sandbox.native import addressof, array, cast, i64, native, syscall, u64, zeroed
from sandbox.x86_64.syscalls import SYS_RT_SIGPROCMASK

_BLOCK, _SETMASK = 0, 2
_MASK_SIZE = 8


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
def set_signal_mask(mask: u64) -> u64:
    """Block exactly the signals of `mask`; returns the previous mask."""
    return change_mask(_SETMASK, mask)
