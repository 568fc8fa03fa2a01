"""Where the stand-in kernel's memory is: at a fixed address, which the transcripts name."""

from __future__ import annotations

import ctypes
import mmap

BASE, SIZE = 0x10000000, 0x3000
_NOREPLACE = 0x100000
"""MAP_FIXED_NOREPLACE"""


def map_at_base(protection: int) -> bool:
    """Map it anew. False if something else is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOREPLACE
    return libc.mmap(BASE, SIZE, protection, flags, -1, 0) == BASE


def free() -> None:
    """Unmap it."""
    ctypes.CDLL(None).munmap(ctypes.c_void_p(BASE), ctypes.c_size_t(SIZE))


is_reserved = map_at_base(0)
"""Of a Python that is not position-independent, as Debian's, the heap begins below this and would soon be here."""
