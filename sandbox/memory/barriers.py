"""Synchronising the process's threads and cores, by membarrier(2) or, where that is denied, by a page's protection."""

from __future__ import annotations

import ctypes
import functools

from sandbox.memory.mappings import reserve
from sandbox.memory.pages import PAGE, PROT_READ, PROT_WRITE, is_denied, libc, mprotect
from sandbox.process import fork
from sandbox.x86_64.syscalls import SYS_CLOCK_GETTIME, SYS_MEMBARRIER

_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4
_MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE = 1 << 5
_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE = 1 << 6


def _register_membarrier_again() -> None:
    register_membarrier.cache_clear()
    register_membarrier()


@functools.cache
def _watch_forks() -> None:
    fork.in_child(fork.Phase.KERNEL, _register_membarrier_again)


@functools.cache
def register_membarrier() -> bool:
    """Register for the expedited barriers that patching and quiescing use; False if they are denied."""
    _watch_forks()
    commands = (_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, _MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)
    return not is_denied("membarrier") and not any(libc.syscall(SYS_MEMBARRIER, command, 0, 0) for command in commands)


@functools.cache
def barrier_page() -> int:
    """A page whose protection is changed where membarrier is denied; 0 where it is not.

    Making a page in use read-only interrupts every core that runs a thread of this process.
    """
    return 0 if register_membarrier() else reserve(PAGE)


_CLOCK_MONOTONIC = 1


def sync_cores() -> None:
    """Return when every core that runs a thread of this process has refetched what it is about to execute."""
    page = barrier_page()
    if page:
        mprotect(page, PAGE, PROT_READ | PROT_WRITE)
        # This fails if another thread has made the page read-only in between: see sandbox.threads.system_calls.
        while libc.syscall(SYS_CLOCK_GETTIME, _CLOCK_MONOTONIC, ctypes.c_void_p(page)):
            mprotect(page, PAGE, PROT_READ | PROT_WRITE)
        mprotect(page, PAGE, PROT_READ)
    elif libc.syscall(SYS_MEMBARRIER, _MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0):
        raise OSError(ctypes.get_errno(), "membarrier(SYNC_CORE) failed")
