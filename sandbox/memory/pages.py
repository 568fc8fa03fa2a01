"""System calls on the process's memory, with errors that say what failed."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

PAGE = mmap.PAGESIZE
PROT_NONE, PROT_READ, PROT_WRITE, PROT_EXEC = 0, 1, 2, 4
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
MAP_NORESERVE, MAP_FIXED_NOREPLACE = 0x4000, 0x100000
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
_MAP_FAILED = ctypes.c_void_p(-1).value
MADV_NOHUGEPAGE, MADV_DONTDUMP, MADV_WIPEONFORK = 15, 16, 18


libc = ctypes.PyDLL(None, use_errno=True)  # with the GIL, which takes longer to get back than these calls do
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def check(result: int | None, what: str) -> int:
    """The result of a system call. Raises OSError if it is that of a failure; `what` says which call."""
    if result is None or result == _MAP_FAILED:
        code = ctypes.get_errno()
        limited = why_unavailable() if code == errno.ENOMEM else ""
        raise OSError(code, f"{what}: {os.strerror(code)}{limited and f': {limited}'}")
    return result


def mmap_at(address: int | None, size: int, prot: int, flags: int, fd: int = -1) -> int:
    """mmap(2) of `size` bytes. Raises OSError."""
    where = "anywhere" if address is None else hex(address)
    return check(libc.mmap(address, size, prot, flags, fd, 0), f"mmap of {size} bytes at {where}")


def mprotect(address: int, size: int, prot: int) -> None:
    """mprotect(2). Raises OSError."""
    if libc.mprotect(address, size, prot):
        code = ctypes.get_errno()
        raise OSError(code, f"mprotect of {size} bytes at {address:#x}: {os.strerror(code)}")


def is_available(size: int) -> bool:
    """Whether this process could have `size` bytes more of memory at this moment."""
    if not size:
        return True
    try:
        libc.munmap(mmap_at(None, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS), size)
    except OSError:
        return False
    return True


def why_unavailable() -> str:
    """That this process's address space is limited, and how; empty if it is not."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"RLIMIT_AS (ulimit -v) is {limit} bytes for this process; raise it"
