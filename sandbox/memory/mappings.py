"""Executable memory: the only room that maps, protects or writes it.

Text lives on a memfd that is mapped twice: once private, read + execute, at the address where it runs; once shared, at
an address of its own, through which it is written. The second view is `PROT_NONE` except inside `writable()`, so that no
mapping is ever writable and executable, and a stray pointer finds nothing to damage. The executable view is private so
that a debugger can plant breakpoints in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from sandbox.memory.shared_text import ForkWords, changes
from sandbox.memory.shared_text import text_mutex as text_mutex
from sandbox.x86_64.fork_counter import fork_counter
from sandbox.x86_64.syscalls import SYS_CLOCK_GETTIME, SYS_MEMBARRIER

PAGE = mmap.PAGESIZE
REACH = (1 << 31) - (1 << 20)
"""How far a rel32 displacement may go, less a margin for what is allocated together, in bytes."""

_PROT_NONE, _PROT_READ, _PROT_WRITE, _PROT_EXEC = 0, 1, 2, 4
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x01, 0x02, 0x10, 0x20
_MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x4000, 0x100000
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_NOHUGEPAGE, _MADV_WIPEONFORK = 15, 18

_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 1 << 4
_MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE = 1 << 5
_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE = 1 << 6

_libc = ctypes.PyDLL(None, use_errno=True)  # with the GIL, which takes longer to get back than these calls do
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

DENY = "FPROBE_DENY"
"""Environment variable: facilities to do without, separated by commas."""


def _check(result: int | None, what: str) -> int:
    if result is None or result == _MAP_FAILED:
        code = ctypes.get_errno()
        limited = why_unavailable() if code == errno.ENOMEM else ""
        raise OSError(code, f"{what}: {os.strerror(code)}{limited and f': {limited}'}")
    return result


def _mmap(address: int | None, size: int, prot: int, flags: int, fd: int = -1) -> int:
    where = "anywhere" if address is None else hex(address)
    return _check(_libc.mmap(address, size, prot, flags, fd, 0), f"mmap of {size} bytes at {where}")


def _mprotect(address: int, size: int, prot: int) -> None:
    if _libc.mprotect(address, size, prot):
        code = ctypes.get_errno()
        raise OSError(code, f"mprotect of {size} bytes at {address:#x}: {os.strerror(code)}")


class TextMapping:
    """Executable pages and their writable alias.

    `base` and `size` are page-aligned, in bytes; `name` is what /proc/self/maps shows after `memfd:`; `own_since` is
    `forks_seen()` before it was mapped.
    """

    def __init__(self, base: int, size: int, name: str, alias: int, own_since: int) -> None:
        self.base = base
        self.size = size
        self.name = name
        self._alias = alias
        self._writers = 0
        self._own_since = own_since

    @property
    def end(self) -> int:
        """The first address behind the mapping."""
        return self.base + self.size

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    @contextlib.contextmanager
    def writable(self) -> Iterator[int]:
        """Open the alias for writing; yields `delta`: an address plus delta is its writable alias.

        Holds `text_mutex`, and forks off. May be nested. Raises OSError if a copy of what a fork has left shared cannot be had.
        """
        with changes.of(self):
            if not self._writers:
                _mprotect(self._alias, self.size, _PROT_READ | _PROT_WRITE)
            self._writers += 1
            try:
                yield self._alias - self.base
            finally:
                self._writers -= 1
                if not self._writers:
                    _mprotect(self._alias, self.size, _PROT_NONE)

    def write(self, address: int, data: bytes) -> None:
        """Store `data` at `address`, for text that nobody executes yet.

        Raises ValueError if it does not lie within the mapping.
        """
        if not (self.base <= address and address + len(data) <= self.end):
            raise ValueError(f"{len(data)} bytes at {address:#x} do not lie in {self.name}")
        with self.writable() as delta:
            ctypes.memmove(address + delta, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        """The `size` bytes at `address` as the CPU would execute them."""
        if not (self.base <= address and address + size <= self.end):
            raise ValueError(f"{size} bytes at {address:#x} do not lie in {self.name}")
        return ctypes.string_at(address, size)

    def unshare(self) -> None:
        """Replace the pages by a copy of this process's own, if a fork has left them to parent and child in common.

        The alias stays where it is, since a writer may have been interrupted by the fork.
        """
        forks = forks_seen()
        if forks != self._own_since:
            made = _map_twice(self.base, ctypes.string_at(self.base, self.size), self.name)
            self._alias = _moved(made, self.size, self._alias)
            self._own_since = forks
            if self._writers:
                _mprotect(self._alias, self.size, _PROT_READ | _PROT_WRITE)

    def unmap(self) -> None:
        """Give both views back. Nothing may execute or reference the text any more."""
        with text_mutex:
            self.forget()
            _libc.munmap(self.base, self.size)

    def forget(self) -> None:
        """Give the alias back; somebody else has unmapped the text, or will."""
        with text_mutex:
            _libc.munmap(self._alias, self.size)


def forks_seen() -> int:
    """How many forks there have been, in this process and in its parents before it, since text was first mapped."""
    return ForkWords.from_address(fork_words()).forks


def fork_words() -> int:
    """The address of `changes.words`. From the first call on forks are counted there, and Python's hooks are in place."""
    with text_mutex:
        return _count_forks()


@functools.cache
def _count_forks() -> int:
    from sandbox.process import fork

    words, counter = reserve(PAGE), reserve(PAGE)
    code = fork_counter(words + ForkWords.forks.offset)  # type: ignore[attr-defined]
    _libc.munmap(_map_twice(counter, code.ljust(PAGE, b"\0"), "fork-counter"), PAGE)
    changes.words = ForkWords.from_address(words)
    fork.at_fork(0, counter, counter)
    fork.in_child(fork.Phase.KERNEL, _register_membarrier_again)
    fork.install()
    return words


_SCARCE = (errno.EMFILE, errno.ENFILE)
"""No descriptor is free: that says nothing about what can be had at another time."""


def backing_kind() -> str:
    """What text is kept on: 'memfd', or 'file' (unlinked, in the first directory that allows it).

    Raises OSError (EMFILE, ENFILE) if no descriptor is free to find out.
    """
    try:
        os.close(_memfd("fprobe"))
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return "file"
    return "memfd"


def _memfd(name: str) -> int:
    """A descriptor of an empty file in memory. With the GIL, so that no other thread takes a number that was just closed."""
    if is_denied("memfd"):
        raise OSError(errno.ENOSYS, f"memfd is denied by {DENY}")
    descriptor = int(_libc.memfd_create(os.fsencode(name), os.MFD_CLOEXEC))
    return _check(None if descriptor < 0 else descriptor, f"memfd {name!r}")


def _backing(name: str) -> int:
    """A descriptor of an empty file that exists only in memory, or at least in no directory."""
    try:
        return _memfd(name)
    except OSError as error:
        if error.errno in _SCARCE:
            raise
    for directory in ("/dev/shm", tempfile.gettempdir(), str(Path.home())):
        try:
            descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in _SCARCE:
                raise
            continue
        if not os.fstatvfs(descriptor).f_flag & os.ST_NOEXEC:
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EACCES, "neither memfd nor an executable temporary file can be had: text cannot be patched")


def _filled(contents: bytes | int, name: str) -> int:
    """A descriptor of a file holding `contents`, or that many zero bytes."""
    fd = _backing(name)
    if isinstance(contents, int):
        os.ftruncate(fd, contents)
    else:
        view = memoryview(contents)
        while view:
            view = view[os.write(fd, view) :]
    return fd


def _map_twice(base: int, contents: bytes | int, name: str, placement: int = _MAP_FIXED) -> int:
    """Map contents executable at `base` and return the address of a closed (PROT_NONE) writable alias."""
    size = contents if isinstance(contents, int) else len(contents)
    try:
        fd = _filled(contents, name)
    except OSError as error:
        if error.errno not in _SCARCE:
            raise
        return _map_twice_without_file(base, size, b"" if isinstance(contents, int) else contents, placement)
    try:
        alias = _mmap(None, size, _PROT_NONE, _MAP_SHARED, fd)
        try:
            _mmap(base, size, _PROT_READ | _PROT_EXEC, _MAP_PRIVATE | placement, fd)
        except OSError:
            _libc.munmap(alias, size)
            raise
    finally:
        os.close(fd)
    return alias


def _map_twice_without_file(base: int, size: int, contents: bytes, placement: int) -> int:
    """The same where no descriptor is free: shared memory without a file, of which mremap makes the second view.

    Debuggers cannot plant breakpoints there, since that view is a shared one.
    """
    if placement != _MAP_FIXED:
        _mmap(base, size, _PROT_NONE, _MAP_PRIVATE | _MAP_ANONYMOUS | placement)
    alias = _mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_SHARED | _MAP_ANONYMOUS)
    try:
        ctypes.memmove(alias, contents, len(contents))
        _mprotect(alias, size, _PROT_READ | _PROT_EXEC)  # which the second view is made with
        _check(_libc.mremap(alias, 0, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, base), f"mremap to {base:#x}")
        _mprotect(alias, size, _PROT_NONE)
    except OSError:
        _libc.munmap(alias, size)
        raise
    return alias


def _moved(address: int, size: int, to: int) -> int:
    """Where a mapping is after it was moved to `to`, whatever was there; that is given back if it cannot be."""
    if _libc.mremap(address, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, to) == to:
        return to
    _libc.munmap(to, size)
    return address


def sparse_backing(name: str, size: int) -> int:
    """A descriptor of a file of `size` bytes, which takes memory only where it is written."""
    return _filled(size, name)


def map_closed(fd: int, size: int, instead: int = 0) -> int:
    """Address, far from all code, of a shared view of the beginning of a file: not accessible until `set_writable`.

    `instead`: the address of one that it takes the place of.
    """
    flags = _MAP_SHARED | _MAP_NORESERVE | (_MAP_FIXED if instead else 0)
    return _mmap(instead or _far_hint(size), size, _PROT_NONE, flags, fd)


def close(descriptor: int) -> None:
    """Close a descriptor with the GIL, so that no other thread of Python's takes its number before the caller does."""
    _libc.close(descriptor)


def map_shared(fd: int, offset: int, size: int, address: int | None = None) -> int:
    """Address of a shared view of a part of a file: at `address`, in place of what is there, or anywhere far from all code."""
    flags = _MAP_SHARED | _MAP_NORESERVE | (_MAP_FIXED if address is not None else 0)
    where = _far_hint(size) if address is None else address
    result = _libc.mmap(where, size, _PROT_READ | _PROT_WRITE, flags, fd, offset)
    return _check(result, f"mmap of {size} bytes at {where:#x}")


def map_private(address: int, size: int) -> None:
    """Zeroed private memory in place of what is at `address`."""
    _mmap(address, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED)


def set_writable(address: int, size: int, allowed: bool) -> None:
    """Open or close (a part of) what `map_closed` returned."""
    _mprotect(address, size, _PROT_READ | _PROT_WRITE if allowed else _PROT_NONE)


def map_page(fd: int, offset: int, address: int, replace: bool = False) -> None:
    """Map one page of a file, executable, at `address`. Raises FileExistsError if it is taken, unless it may be replaced."""
    flags = _MAP_PRIVATE | (_MAP_FIXED if replace else _MAP_FIXED_NOREPLACE)
    _check(_libc.mmap(address, PAGE, _PROT_READ | _PROT_EXEC, flags, fd, offset), f"mmap of a page at {address:#x}")


def write_through_kernel(address: int, data: bytes) -> None:
    """Write into text by way of /proc/self/mem: also into pages that a debugger's write has copied, which no alias reaches."""
    descriptor = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


def remap_text(base: int, size: int, name: str) -> TextMapping:
    """Put existing executable pages on a memfd, where they are, and return the mapping.

    `base` and `size` (bytes) are widened to whole pages. Code that runs there at the same time is not disturbed: it
    finds the same bytes. Raises OSError if the kernel refuses.
    """
    low = base & -PAGE
    high = (base + size + PAGE - 1) & -PAGE
    with text_mutex:
        forks, contents = forks_seen(), ctypes.string_at(low, high - low)
        return TextMapping(low, high - low, name, _map_twice(low, contents, name), forks)


def mappings() -> list[tuple[int, int, str, str]]:
    """The process's mappings as (start, end, permissions, path), ascending."""
    result = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:  # noqa: PTH123 (hot enough)
        for line in maps:
            bounds, permissions, _offset, _device, _inode, *path = line.split(maxsplit=5)
            start, _, end = bounds.partition("-")
            result.append((int(start, 16), int(end, 16), permissions, path[0].strip() if path else ""))
    return result


def _gaps_near(low: int, high: int, size: int) -> Iterator[int]:
    """Start addresses of free space of `size` bytes from which all of [low, high) can be reached, nearest first."""
    lowest = max(high - REACH, 1 << 20)
    highest = min(low + REACH, (1 << 47) - PAGE) - size
    candidates = []
    previous_end = 1 << 20
    for start, end, _permissions, _path in [*mappings(), (1 << 47, 1 << 47, "", "")]:
        first, last = max(previous_end, lowest), min(start - size, highest)
        if first <= last:
            candidates.append(last & -PAGE if last < low else (first + PAGE - 1) & -PAGE)
        previous_end = end
    yield from sorted(candidates, key=lambda address: abs(address - low))


def _place_near(near: tuple[int, int], size: int, place: Callable[[int], int]) -> tuple[int, int]:
    """Call `place(address)` with free addresses in reach until one is still free; that address and the result."""
    with text_mutex:
        for address in _gaps_near(*near, size):
            try:
                return address, place(address)
            except FileExistsError:
                continue
    raise OSError(errno.ENOMEM, f"no room for {size} bytes within reach of {near[0]:#x}..{near[1]:#x}")


def allocate_text(near: tuple[int, int], size: int, name: str) -> TextMapping:
    """Fresh text pages (zeros) within rel32 reach of the whole range `near` = (low, high).

    `size` is in bytes and widened to whole pages. Raises OSError(ENOMEM) if there is no room in reach.
    """
    size = (size + PAGE - 1) & -PAGE
    forks = forks_seen()
    base, alias = _place_near(near, size, lambda address: _map_twice(address, size, name, _MAP_FIXED_NOREPLACE))
    return TextMapping(base, size, name, alias, forks)


_FAR, _FAR_SPAN = 1 << 44, 1 << 45
"""A range of addresses, in bytes, where the kernel puts nothing of its own accord."""
_far_used = 0


def _far_hint(size: int) -> int:
    """Where to ask for `size` bytes far from all code; the kernel is free to put them elsewhere."""
    global _far_used
    with text_mutex:
        hint = _FAR + _far_used % _FAR_SPAN
        _far_used += size
    return hint


def reserve(size: int, near: tuple[int, int] | None = None) -> int:
    """Address of `size` bytes of zeroed read/write memory; pages are charged only when they are touched.

    With `near` = (low, high), within rel32 reach of that whole range; OSError(ENOMEM) if there is no room. Without it,
    far from all code, whose surroundings are for what it has to reach.
    """
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    size = (size + PAGE - 1) & -PAGE
    if near is None:
        address = _mmap(_far_hint(size), size, _PROT_READ | _PROT_WRITE, flags)
    else:
        place = functools.partial(_mmap, size=size, prot=_PROT_READ | _PROT_WRITE, flags=flags | _MAP_FIXED_NOREPLACE)
        address, _ = _place_near(near, size, place)
    _libc.madvise(address, size, _MADV_NOHUGEPAGE)
    return address


def is_available(size: int) -> bool:
    """Whether this process could have `size` bytes more of memory at this moment."""
    if not size:
        return True
    try:
        release(_mmap(None, size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_ANONYMOUS), size)
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


def wipe_on_fork(address: int, size: int) -> None:
    """Let memory that `reserve` returned be zero in the child of every fork, also of one that runs no Python."""
    _check(_libc.madvise(address, size, _MADV_WIPEONFORK) or 0, "madvise(MADV_WIPEONFORK)")


def release(address: int, size: int) -> None:
    """Give back what `reserve` returned."""
    _libc.munmap(address, size)


def _register_membarrier_again() -> None:
    register_membarrier.cache_clear()
    register_membarrier()


@functools.cache
def register_membarrier() -> bool:
    """Ask for the expedited barriers that patching and waiting for threads use; False if they are denied."""
    commands = (_MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, _MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)
    return not is_denied("membarrier") and not any(_libc.syscall(SYS_MEMBARRIER, command, 0, 0) for command in commands)


@functools.cache
def barrier_page() -> int:
    """A page whose protection is changed where membarrier is denied; 0 where it is not.

    Taking a right away from a page in use interrupts every core that runs a thread of this process.
    """
    return 0 if register_membarrier() else reserve(PAGE)


_CLOCK_MONOTONIC = 1


def sync_cores() -> None:
    """Return when every core that runs a thread of this process has refetched what it is about to execute."""
    page = barrier_page()
    if page:
        _mprotect(page, PAGE, _PROT_READ | _PROT_WRITE)
        # If another thread has taken the right away meanwhile, this fails: see sandbox.threads.barrier.
        while _libc.syscall(SYS_CLOCK_GETTIME, _CLOCK_MONOTONIC, ctypes.c_void_p(page)):
            _mprotect(page, PAGE, _PROT_READ | _PROT_WRITE)
        _mprotect(page, PAGE, _PROT_READ)
    elif _libc.syscall(SYS_MEMBARRIER, _MEMBARRIER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0):
        raise OSError(ctypes.get_errno(), "membarrier(SYNC_CORE) failed")


def is_denied(what: str) -> bool:
    """Whether the environment asks to do without `what` ('memfd', 'membarrier'), as where a sandbox forbids it."""
    return what in os.environ.get(DENY, "").split(",")
