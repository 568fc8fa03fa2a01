"""A thread's own stack: glibc keeps its lowest address, followed by its size, in the thread descriptor."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None)
_libc.pthread_self.restype = ctypes.c_void_p
_libc.pthread_getattr_np.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_ATTRIBUTES_SIZE = 64
_LEAST_GAP = 128 << 20
"""Bytes below the first thread's stack in which the kernel maps nothing else, whatever the limit of its size."""
_STARTSTACK = 28
"""The number of a field of /proc/self/stat."""


def own_stack() -> tuple[int, int]:
    """Start and end of the calling thread's stack, without its guard."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_SIZE)
    start, size = ctypes.c_uint64(), ctypes.c_uint64()
    if _libc.pthread_getattr_np(_libc.pthread_self(), attributes):
        return 0, 0
    _libc.pthread_attr_getstack(attributes, ctypes.byref(start), ctypes.byref(size))
    _libc.pthread_attr_destroy(attributes)
    return start.value, start.value + size.value


def find_field(read: Callable[[int], int], size: int) -> int:
    """The offset from %fs where the calling thread, not the process's first, has its stack's start and size; 0 if nowhere.

    `read(offset)` reads a word of the thread descriptor, which has `size` bytes.
    """
    start, end = own_stack()
    words = [read(offset) for offset in range(0, size, 8)]
    found = [8 * n for n, word in enumerate(words[:-1]) if 0 < word <= start < end == word + words[n + 1]]
    return found[0] if len(found) == 1 else 0


def main_stack() -> tuple[int, int]:
    """Start and end of the memory that the first thread's stack may grow into."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    top = int(fields[_STARTSTACK - 3])
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return top - (min(limit, _LEAST_GAP) if limit != resource.RLIM_INFINITY else _LEAST_GAP), top
