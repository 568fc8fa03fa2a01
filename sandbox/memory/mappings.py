"""Mapping memory, near code or far from it, and executable memory that can be written.

Text is on a memfd that is mapped twice: once private, read + execute, at the address where it runs; once shared, at another
address, through which it is written. The second view, the alias, is `PROT_NONE` except inside `writable()`, so that no mapping is
ever writable and executable, and stray pointers cannot damage text. The executable view is private so that debuggers can
plant breakpoints in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from sandbox.memory.address_space import address_space
from sandbox.memory.address_space import mappings as mappings
from sandbox.memory.pages import (
    MADV_DONTDUMP,
    MADV_NOHUGEPAGE,
    MADV_WIPEONFORK,
    MAP_ANONYMOUS,
    MAP_FIXED,
    MAP_FIXED_NOREPLACE,
    MAP_NORESERVE,
    MAP_PRIVATE,
    MAP_SHARED,
    MREMAP_FIXED,
    MREMAP_MAYMOVE,
    PROT_EXEC,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    SCARCE,
    check,
    filled,
    libc,
    mmap_at,
    mprotect,
)
from sandbox.memory.pages import PAGE as PAGE
from sandbox.process import fork
from sandbox.process.integers import U64_MAX, integer
from sandbox.process.once import once
from sandbox.process.shared_text import ForkWords, SharedText, changes
from sandbox.process.shared_text import text_mutex as text_mutex
from sandbox.x86_64.encoding import fork_counter

REACH = (1 << 31) - (1 << 20)
"""The largest rel32 displacement in bytes, minus a margin for what is allocated together."""


class LeftView(NamedTuple):
    """A view of an earlier copy of a part of text, from `offset` on, which children have kept. It is closed."""

    offset: int
    size: int
    address: int


class TextMapping:
    """Executable pages and their writable alias.

    `base` and `size` are page-aligned, in bytes; `name` is what /proc/self/maps shows after `memfd:`; `own_since` is
    `forks_seen()` before it was mapped. `is_new`: the memory is for code that is yet to be written. Pages of it to which another
    tool has written, as Frida does, are copies: what is written to the alias is written to them, too. Changes of other text
    are verified by their makers.
    """

    def __init__(self, base: int, size: int, name: str, alias: int, own_since: int, is_new: bool = False) -> None:
        self.base = base
        self.size = size
        self.name = name
        self._alias = alias
        self._writers = 0
        self._is_open = False
        """Whether the alias can be written: changed after `_writers` where it opens, before where it closes, for a signal's
        handler in between that writes, too."""
        self._own_since = own_since
        self._is_new = is_new
        self.left: list[LeftView] = []
        """There only if `keeps_left`."""

    @property
    def end(self) -> int:
        """The first address after the mapping."""
        return self.base + self.size

    def __contains__(self, address: int) -> bool:
        return self.base <= address < self.base + self.size

    @contextlib.contextmanager
    def writable(self) -> Iterator[int]:
        """Open the alias for writing; yields `delta`: an address plus delta is its writable alias.

        Holds `text_mutex` and delays forks. May be nested. Raises OSError if text that a fork has left shared cannot be copied.
        """
        with changing(self):
            copied, before = list[int](), list[bytes]()
            self._writers += 1
            try:
                if not self._is_open:
                    self._protect(PROT_READ | PROT_WRITE)
                    self._is_open = True
                if self._is_new and self._writers == 1:
                    pages = copied_pages(self.base, self.size)
                    before = [ctypes.string_at(self._alias + page - self.base, PAGE) for page in pages]
                    copied = pages
                yield self._alias - self.base
            finally:
                for page, contents in zip(copied, before, strict=True):
                    write_changes(page, contents, ctypes.string_at(self._alias + page - self.base, PAGE))
                self._writers -= 1
                if not self._writers:
                    self._is_open = False
                    self._protect(PROT_NONE)

    def write(self, address: int, data: bytes) -> None:
        """Store `data` at `address`, in text that no thread executes yet.

        Raises ValueError if it does not lie within the mapping.
        """
        if not (self.base <= address and address + len(data) <= self.end):
            raise ValueError(f"{len(data)} bytes at {address:#x} are not all inside {self.name}")
        with self.writable() as delta:
            ctypes.memmove(address + delta, data, len(data))

    def read(self, address: int, size: int) -> bytes:
        """The `size` bytes at `address` as the CPU would execute them."""
        if not (self.base <= address and address + size <= self.end):
            raise ValueError(f"{size} bytes at {address:#x} are not all inside {self.name}")
        return ctypes.string_at(address, size)

    def unshare(self) -> None:
        """Replace the pages by this process's own copy, if a fork has left them shared by parent and child.

        The alias stays where it is, since a writer may have been interrupted by the fork.
        """
        forks = forks_seen()
        if forks != self._own_since:
            for offset, size in self.parts:
                alias = self._alias + offset
                if keeps_left[0] and not self._is_new:
                    self.left.append(LeftView(offset, size, _another_view(alias, size)))
                map_twice(self.base + offset, ctypes.string_at(self.base + offset, size), self.name, alias=alias)
            self._own_since = forks
            if self._writers:
                self._protect(PROT_READ | PROT_WRITE)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Offset and size of what is on memory files, one each."""
        return [(0, self.size)]

    def prepare(self, addresses: Iterable[int]) -> None:
        """What is written next is within a page of these addresses. Raises OSError if there is no memory."""

    def _protect(self, protection: int) -> None:
        for offset, size in self.parts:
            mprotect(self._alias + offset, size, protection)

    def unmap(self) -> None:
        """Unmap both views. Nothing may execute or reference the text any more."""
        with text_mutex:
            self.forget()
            libc.munmap(self.base, self.size)

    def forget(self) -> None:
        """Unmap the alias; other code has unmapped the text, or will."""
        with text_mutex:
            libc.munmap(self._alias, self.size)


keeps_left = [False]
"""Whether text that forks have left with children stays in reach: of a program whose children cannot change it themselves."""


@contextlib.contextmanager
def changing(text: SharedText) -> Iterator[None]:
    """Hold `text_mutex` and delay forks while `text` is changed, which is this process's own then. May be nested.

    Raises OSError if there is no memory for a copy.
    """
    with text_mutex:
        if not changes.open and not changes.begin(threading.get_ident()):
            with fork.given_way():  # a fork in progress may wait until no Python of ours runs
                changes.begin_after_forks(threading.get_ident())
        changes.open.append(text)
        try:
            text.unshare()
            yield
        finally:
            changes.open.pop()
            if not changes.open:
                changes.words.writer = 0


def forks_seen() -> int:
    """How many forks there have been, in this process and in its parents before it, since text was first mapped."""
    return ForkWords.from_address(fork_words()).forks


def fork_words() -> int:
    """The address of `changes.words`. The first call starts counting forks there and installs the fork hooks."""
    with text_mutex:
        return _count_forks()


@once
def _count_forks() -> int:
    words, counter = reserve(PAGE), reserve(PAGE)
    code = fork_counter(words + ForkWords.forks.offset)  # type: ignore[attr-defined]
    libc.munmap(map_twice(counter, code.ljust(PAGE, b"\0"), "fork-counter"), PAGE)
    changes.words = ForkWords.from_address(words)
    fork.at_fork(0, counter, counter)
    fork.install()
    return words


def map_twice(base: int, contents: bytes | int, name: str, placement: int = MAP_FIXED, alias: int | None = None) -> int:
    """Map contents executable at `base` and return the address of a closed (PROT_NONE) writable alias.

    `alias`: the address of one that it takes the place of. That is still there if this raises OSError.
    """
    size = contents if isinstance(contents, int) else len(contents)
    try:
        fd = filled(contents, name)
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        try:
            return _map_twice_without_file(base, size, b"" if isinstance(contents, int) else contents, placement, alias)
        except PermissionError as denied:
            why = f"{denied.strerror}, and no descriptor is free for a memory file: close some"
            raise OSError(errno.EPERM, why) from None
    try:
        if alias is not None:
            mmap_at(base, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | placement, fd)
            return mmap_at(alias, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd)
        alias = mmap_at(None, size, PROT_NONE, MAP_SHARED, fd)
        try:
            mmap_at(base, size, PROT_READ | PROT_EXEC, MAP_PRIVATE | placement, fd)
        except OSError:
            libc.munmap(alias, size)
            raise
    finally:
        os.close(fd)
    return alias


def _map_twice_without_file(base: int, size: int, contents: bytes, placement: int, alias: int | None) -> int:
    """The same where no descriptor is free: shared memory without a file, whose second view is made by mremap.

    Debuggers cannot plant breakpoints there, since that view is a shared one.
    """
    if placement != MAP_FIXED:
        mmap_at(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | placement)
    made = mmap_at(None, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS)
    try:
        ctypes.memmove(made, contents, len(contents))
        mprotect(made, size, PROT_READ | PROT_EXEC)  # which the second view is made with
        _mremap(made, 0, size, base)
        mprotect(made, size, PROT_NONE)
        return made if alias is None else _mremap(made, size, size, alias)
    except OSError:
        libc.munmap(made, size)
        raise


def _mremap(address: int, old_size: int, size: int, to: int) -> int:
    """Move a mapping to `to`, replacing what is there; with an `old_size` of 0, map shared memory there once more."""
    return check(libc.mremap(address, old_size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to), f"mremap to {to:#x}")


def _another_view(alias: int, size: int) -> int:
    """Map the file of an alias once more, anywhere. Raises OSError."""
    return check(libc.mremap(alias, 0, size, MREMAP_MAYMOVE, None), f"mremap of {size} bytes")


def map_closed(fd: int, size: int, instead: int = 0) -> int:
    """Address, far from all code, of a shared view of the beginning of a file: not accessible until `set_writable`.

    `instead`: the address of one that it takes the place of.
    """
    flags = MAP_SHARED | MAP_NORESERVE
    if instead:
        return mmap_at(instead, size, PROT_NONE, flags | MAP_FIXED, fd)
    return _far_from_code(size, lambda address: mmap_at(address, size, PROT_NONE, flags, fd))


def map_shared(fd: int, offset: int, size: int, address: int | None = None) -> int:
    """Address of a shared view of a part of a file: at `address`, in place of what is there, or anywhere far from all code.

    It is left out of core dumps, which would allocate every hole of a sparse file.
    """
    flags = MAP_SHARED | MAP_NORESERVE | (MAP_FIXED if address is not None else 0)

    def place(where: int) -> int:
        result = libc.mmap(where, size, PROT_READ | PROT_WRITE, flags, fd, offset)
        return check(result, f"mmap of {size} bytes at {where:#x}")

    mapped = _far_from_code(size, place) if address is None else place(address)
    libc.madvise(mapped, size, MADV_DONTDUMP)
    return mapped


def map_inherited(size: int) -> int:
    """Address of zeroed memory, far from all code, that this process will share with its children. Left out of core dumps."""
    flags = MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE
    address = _far_from_code(size, lambda hint: mmap_at(hint, size, PROT_READ | PROT_WRITE, flags))
    libc.madvise(address, size, MADV_DONTDUMP)
    return address


def set_writable(address: int, size: int, allowed: bool) -> None:
    """Open or close (a part of) what `map_closed` returned."""
    mprotect(address, size, PROT_READ | PROT_WRITE if allowed else PROT_NONE)


def map_page(fd: int, offset: int, address: int, replace: bool = False) -> None:
    """Map one page of a file, executable, at `address`. Raises FileExistsError if it is taken, unless it may be replaced."""
    flags = MAP_PRIVATE | (MAP_FIXED if replace else MAP_FIXED_NOREPLACE)
    check(libc.mmap(address, PAGE, PROT_READ | PROT_EXEC, flags, fd, offset), f"mmap of a page at {address:#x}")


def write_through_kernel(address: int, data: bytes) -> None:
    """Write text through /proc/thread-self/mem, which also reaches pages that a debugger's write has copied, unlike the alias."""
    descriptor = os.open("/proc/thread-self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, address)
    finally:
        os.close(descriptor)


_COPIED = bytes(bool(flags & 0xC0) and not flags & 0x20 for flags in range(256))
"""By the highest byte of a page's entry in pagemap: is it present or swapped out, and not a page of the file?"""


def copied_pages(base: int, size: int) -> list[int]:
    """The addresses of pages, of a private mapping of a file, that a debugger's write has copied; none if /proc cannot tell."""
    try:
        descriptor = os.open("/proc/thread-self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        entries = os.pread(descriptor, size // PAGE * 8, base // PAGE * 8)
    finally:
        os.close(descriptor)
    are_copied = entries[7::8].translate(_COPIED)
    return [base + index * PAGE for index, is_copied in enumerate(are_copied) if is_copied] if 1 in are_copied else []


def write_changes(address: int, before: bytes, after: bytes) -> None:
    """Write the bytes that differ through the kernel. Bytes that are the same stay as whoever copied the page has left them."""
    start = None
    for at in range(len(after) + 1):
        is_changed = at < len(after) and before[at] != after[at]
        if is_changed and start is None:
            start = at
        elif not is_changed and start is not None:
            write_through_kernel(address + start, after[start:at])
            start = None


def _place_near(near: tuple[int, int], size: int, place: Callable[[int], int]) -> tuple[int, int]:
    """Call `place(address)` with free addresses, from which all of [low, high) is in reach, until one is still free.

    Returns that address and the result. The nearest come first.
    """
    low, high = near
    with text_mutex:
        space = address_space()
        for address in space.near(low, size, high - REACH, low + REACH - size):
            with contextlib.suppress(FileExistsError):
                result = place(address)
                space.take(address, size)
                return address, result
    raise OSError(errno.ENOMEM, f"no space for {size} bytes within rel32 range of {low:#x}..{high:#x}")


def allocate_text(near: tuple[int, int] | None, size: int, name: str) -> TextMapping:
    """Fresh text pages (zeros) within rel32 reach of the whole range `near` = (low, high); None: far from all code.

    `size` is in bytes and widened to whole pages. Raises OSError(ENOMEM) if there is no space in range.
    """
    size = (size + PAGE - 1) & -PAGE
    forks = forks_seen()
    if near is None:  # the kernel chooses: a fixed address may be taken, as by the shadow memory of AddressSanitizer
        base = reserve(size)
        return TextMapping(base, size, name, map_twice(base, size, name), forks, is_new=True)
    base, alias = _place_near(near, size, lambda address: map_twice(address, size, name, MAP_FIXED_NOREPLACE))
    return TextMapping(base, size, name, alias, forks, is_new=True)


_FAR = ((0x1001_0000_0000, 1 << 45), (0x7E80_0000_0000, 0x60_0000_0000))
"""Ranges of addresses, start and size, where the kernel maps nothing by default.

The first begins above AddressSanitizer's shadow memory; that of gcc 16 has 4 TB in the second. ThreadSanitizer and
MemorySanitizer allow the second only.
"""
_far_used = 0


def _far_from_code(size: int, place: Callable[[int], int]) -> int:
    """The result of `place(address)` for `size` bytes at an address far from all code, if the kernel places them there.

    If it does not, they are wherever it has chosen to place them.
    """
    global _far_used
    with text_mutex:
        used, _far_used = _far_used, _far_used + size
    for start, span in _FAR:
        address = place(start + used % span)
        if start <= address < start + span:
            return address
        libc.munmap(address, size)
    return place(0)


def reserve(size: int, near: tuple[int, int] | None = None) -> int:
    """Address of `size` bytes of zeroed read/write memory; pages are charged only when they are touched.

    With `near` = (low, high), within rel32 reach of that whole range; OSError(ENOMEM) if there is no space. Without it,
    far from all code, so that the space around code stays free for what has to be near it.
    """
    flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    size = (size + PAGE - 1) & -PAGE
    if near is None:
        address = _far_from_code(size, lambda hint: mmap_at(hint, size, PROT_READ | PROT_WRITE, flags))
    else:
        place = functools.partial(mmap_at, size=size, prot=PROT_READ | PROT_WRITE, flags=flags | MAP_FIXED_NOREPLACE)
        address, _ = _place_near(near, size, place)
    libc.madvise(address, size, MADV_NOHUGEPAGE)
    return address


def wipe_on_fork(address: int, size: int) -> None:
    """Let memory that `reserve` returned be zero in the child of every fork, also of one that runs no Python."""
    check(libc.madvise(address, size, MADV_WIPEONFORK) or 0, "madvise(MADV_WIPEONFORK)")


def release(address: int, size: int) -> None:
    """Give back what `reserve` returned."""
    libc.munmap(address, size)


def code_address(name: str, value: Any) -> int:
    """`value` as the address of executable code in this process. Raises as `integer` does."""
    number = integer(name, value, 0, U64_MAX)
    if not any(start <= number < end and "x" in permissions for start, end, permissions, _path in mappings()):
        raise OSError(
            errno.EINVAL, f"{name} is {number:#x}, where there is no executable code; give a function's address"
        )
    return number
