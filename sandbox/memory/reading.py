"""Memory of this process that may not be there, read through the kernel."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def read(address: int, size: int) -> bytes:
    """`size` bytes of this process's memory. Raises OSError(EFAULT) if they are not there."""
    buffer = ctypes.create_string_buffer(size or 1)
    here, there = _Vector(ctypes.addressof(buffer), size), _Vector(address, size)
    got = _libc.process_vm_readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if got != size:
        raise OSError(ctypes.get_errno(), f"{size} bytes at {address:#x} cannot be read")
    return buffer.raw[:size]
