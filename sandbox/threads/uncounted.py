"""Threads of ours that the C library does not count: the last one of a program's own ends the process, as without us.

A program's first thread may end by pthread_exit. Then the last thread to end calls exit(); the C library has their number in a
variable, which is found by its name. Where there is none, such a program ends once we find that we are alone in it.

Only in a program that an interpreter was brought into: where Python ends its daemon threads, the count would be one too few.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_EXIT

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

_image: list[NativeImage] = []
"""That of the runtime, where threads are not to be counted."""


@native(export=True)
def count_threads(number: ptr[u32], more: u32) -> u32:
    """Add to the number of threads; returns what it is then."""
    return atomic_add(number, more, "acq_rel") + more


def install(image: NativeImage) -> None:
    """Have `uncounted` use the functions of `image`, which must stay."""
    _image[:] = [image]


@cache
def _number() -> int:
    """The address of the C library's number of threads; 0 if it does not name it."""
    try:
        return ctypes.addressof(ctypes.c_uint32.in_dll(ctypes.CDLL(None), "__nptl_nthreads"))
    except (ValueError, OSError):
        return 0


def others() -> set[int]:
    """The other threads that have not ended. If there are none, the first one has ended too, but the process has not."""
    own = _thread.get_native_id()
    there = map(int, os.listdir("/proc/self/task"))  # noqa: PTH208  # pathlib need not be there
    return {tid for tid in there if tid != own and _stat(tid)[0] not in (b"Z", b"X")}


_EXIT_CODE = 52
_STATE = 3
"""Numbers of fields of /proc/PID/stat."""


def _stat(tid: int) -> list[bytes]:
    """The fields of a thread's stat from the state on."""
    try:
        with open(f"/proc/self/task/{tid}/stat", "rb") as file:  # noqa: PTH123  # pathlib need not be there
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return [b"X"]


def end_like_first_thread() -> None:
    """End the process as it would have ended without this thread, where the first thread was the last of the program's.

    That has made the system call exit, or was killed alone, by a seccomp filter for example. The process's status is that of the
    thread that ends last: this one's.
    """
    if not _image or not _number():
        return  # this thread is counted: exit() is called when it ends
    status = int(_stat(os.getpid())[_EXIT_CODE - _STATE])
    libc = ctypes.CDLL(None)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        libc.signal(number, None)  # the default action; not by Python, which allows that only in its main thread
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    libc.syscall(SYS_EXIT, os.WEXITSTATUS(status))


@contextmanager
def uncounted() -> Iterator[bool]:
    """Let the process end without this thread. Yields whether all others have ended; then it is still counted."""
    if not _image or not _number():
        yield False
        return
    is_last = not _image[0].call("count_threads", _number(), -1)
    if is_last:
        _image[0].call("count_threads", _number(), 1)
    try:
        yield is_last
    finally:
        if not is_last:
            _image[0].call("count_threads", _number(), 1)
