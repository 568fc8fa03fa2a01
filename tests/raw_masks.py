"""Blocking SIGTRAP without the C library's functions, which leave it out while there are breakpoints."""

from __future__ import annotations

import ctypes
import signal

from sandbox.x86_64.syscalls import SYS_RT_SIGPROCMASK

_SIZE = 8
_libc = ctypes.CDLL(None, use_errno=True)


def block_sigtrap() -> None:
    """In the calling thread."""
    mask = ctypes.c_uint64(1 << signal.SIGTRAP - 1)
    assert _libc.syscall(SYS_RT_SIGPROCMASK, signal.SIG_BLOCK, ctypes.byref(mask), None, _SIZE) == 0
