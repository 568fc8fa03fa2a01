"""Threads of ours that the C library does not count: the last one of a program's own ends the process, as without us.

A program's first thread may end by pthread_exit. Then the last thread to end calls exit(); the C library has their number in a
variable, which is found by its name. Where there is none, such a program ends once we find that we are alone in it.

Only in a program that an interpreter was brought into: where Python ends its daemon threads, the count would be one too few.
"""

from __future__ import annotations

import _thread
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from sandbox.native import *

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


def is_alone() -> bool:
    """Whether all other threads have ended: the first one too, but the process has not."""
    own = str(_thread.get_native_id())
    others = (name for name in os.listdir("/proc/self/task") if name != own)  # noqa: PTH208  # pathlib need not be there
    return all(_has_ended(f"/proc/self/task/{name}/stat") for name in others)


def _has_ended(stat: str) -> bool:
    try:
        with open(stat, "rb") as file:  # noqa: PTH123  # pathlib need not be there
            return file.read().rpartition(b") ")[2][:1] in (b"Z", b"X")
    except OSError:
        return True


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
