"""System calls on memory: mapping pages, memory files, reads that may fail, synchronising cores. Errors name the call."""

from __future__ import annotations

import _thread
import ctypes
import errno
import functools
import mmap
import os
from pathlib import Path

from sandbox.process import fork
from sandbox.process.writing import write_all
from sandbox.x86_64.syscalls import SYS_CLOCK_GETTIME, SYS_MEMBARRIER, SYS_MMAP

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
_syscall = libc["syscall"]  # a function object of its own
_syscall.restype = ctypes.c_void_p
_syscall.argtypes = (ctypes.c_long, *libc.mmap.argtypes)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
libc.mremap.restype = ctypes.c_void_p
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
DENY = "FPROBE_DENY"
"""Environment variable: denied facilities, separated by commas."""
SCARCE = (errno.EMFILE, errno.ENFILE)
"""No descriptor is free now; that says nothing about which kind of file is available."""


def check(result: int | None, what: str) -> int:
    """The result of a system call. Raises OSError if it failed; `what` names the call."""
    if result is None or result == _MAP_FAILED:
        code = ctypes.get_errno()
        limited = why_unavailable() if code == errno.ENOMEM else ""
        raise OSError(code, f"{what}: {os.strerror(code)}{limited and f': {limited}'}")
    return result


def mmap_at(address: int | None, size: int, prot: int, flags: int, fd: int = -1, offset: int = 0) -> int:
    """mmap(2) of `size` bytes. Raises OSError."""
    where = "anywhere" if address is None else hex(address)
    if prot & PROT_EXEC and flags & MAP_FIXED:
        # Text takes the place of text. ThreadSanitizer, told of it, would clear shadow memory that it has none of for a library.
        result = _syscall(SYS_MMAP, address, size, prot, flags, fd, offset)
    else:
        result = libc.mmap(address, size, prot, flags, fd, offset)
    return check(result, f"mmap of {size} bytes at {where}")


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
    """A sentence on the limit of this process's address space; empty if there is none."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f"RLIMIT_AS (ulimit -v) is {limit} bytes for this process; raise it"


def is_denied(what: str) -> bool:
    """Whether the environment denies the facility `what` ('memfd', 'membarrier'), as a sandbox would."""
    return what in os.environ.get(DENY, "").split(",")


def _memfd(name: str) -> int:
    """A descriptor of an empty file in memory. With the GIL, so that no other thread takes a number that was just closed."""
    if is_denied("memfd"):
        raise OSError(errno.ENOSYS, f"memfd is denied by {DENY}")
    descriptor = int(libc.memfd_create(os.fsencode(name), os.MFD_CLOEXEC))
    return check(None if descriptor < 0 else descriptor, f"memfd {name!r}")


def _backing(name: str) -> int:
    """A descriptor of an empty file that exists only in memory, or at least in no directory."""
    try:
        return _memfd(name)
    except OSError as error:
        if error.errno in SCARCE:
            raise
    import tempfile

    tried = ("/dev/shm", tempfile.gettempdir(), str(Path.home()))
    for directory in tried:
        try:
            descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in SCARCE:
                raise
            continue
        if not os.fstatvfs(descriptor).f_flag & os.ST_NOEXEC:
            return descriptor
        os.close(descriptor)
    why = f"memfd is denied, and {', '.join(tried)} are mounted noexec or cannot be written to: text cannot be patched"
    raise OSError(errno.EACCES, f"{why}; set TMPDIR to a directory where neither is so")


def filled(contents: bytes | int, name: str) -> int:
    """A descriptor of a file holding `contents`, or that many zero bytes."""
    fd = _backing(name)
    try:
        if isinstance(contents, int):
            set_size(fd, contents, name)
        else:
            set_size(fd, len(contents), name)
            write_all(fd, contents)
    except OSError:
        close(fd)
        raise
    return fd


def set_size(descriptor: int, size: int, name: str) -> None:
    """Make a file `size` bytes long. Raises OSError, which names the limit if this process may have no file so large."""
    import resource

    try:
        os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        raise OSError(
            errno.EFBIG,
            f"{name} takes {size} bytes: RLIMIT_FSIZE (ulimit -f) is {limit} bytes for this process; raise it",
        ) from None


def sparse_backing(name: str, size: int) -> int:
    """A descriptor of a file of `size` bytes, which takes memory only where it is written."""
    return filled(size, name)


def close(descriptor: int) -> None:
    """Close a descriptor with the GIL, so that no other thread of Python's takes its number before the caller does."""
    libc.close(descriptor)


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def read(address: int, size: int) -> bytes:
    """`size` bytes of this process's memory. Raises OSError(EFAULT) if they are not there."""
    buffer = ctypes.create_string_buffer(size or 1)
    here, there = _Vector(ctypes.addressof(buffer), size), _Vector(address, size)
    # By the thread: if the first one has ended, the number of the process has no memory.
    got = libc.process_vm_readv(_thread.get_native_id(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    if got != size:
        raise OSError(ctypes.get_errno(), f"{size} bytes at {address:#x} cannot be read")
    return buffer.raw[:size]


# -- membarrier(2) or, where that is denied, a page's protection -------------------------------------------------------

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
    return 0 if register_membarrier() else mmap_at(None, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS)


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
