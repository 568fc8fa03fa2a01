"""Where the stand-in kernel's memory is: at the address that the transcripts name, or at another one in its place."""

from __future__ import annotations

import ctypes
import mmap
import re

SIZE = 0x3000
_NAMED, _ELSEWHERE = 0x10000000, 0x70000000
"""Of a Python that is not position-independent, as Debian's, the heap begins up to 1 GB above the program."""
_NOREPLACE = 0x100000
"""MAP_FIXED_NOREPLACE"""


def _map_at(address: int, protection: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NOREPLACE
    return libc.mmap(address, SIZE, protection, flags, -1, 0) == address


def map_at_base(protection: int) -> bool:
    """Map it anew. False if something else is there."""
    return _map_at(BASE, protection)


def free() -> None:
    """Unmap it."""
    ctypes.CDLL(None).munmap(ctypes.c_void_p(BASE), ctypes.c_size_t(SIZE))


def moved(text: str) -> str:
    """A transcript with the addresses that the memory has here."""
    return re.sub(rf"\b{_NAMED >> 12:#x}(?=[0-9a-f]{{3}}\b)", f"{BASE >> 12:#x}", text)


BASE = _NAMED if _map_at(_NAMED, 0) else _ELSEWHERE
is_reserved = BASE == _NAMED or map_at_base(0)
"""Whether it is mapped, so that nothing else comes there."""
