"""Putting existing text on memory files: all of it or, of very large text, pieces around what is written."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from sandbox.memory.mappings import TextMapping, forks_seen, map_twice, reserve, text_mutex
from sandbox.memory.pages import (
    MAP_FIXED,
    MAP_PRIVATE,
    MAP_SHARED,
    PAGE,
    PROT_EXEC,
    PROT_NONE,
    PROT_READ,
    PROT_WRITE,
    SCARCE,
    filled,
    libc,
    mmap_at,
    mprotect,
)
from sandbox.process.writing import write_all


def remap_text(base: int, size: int, name: str) -> TextMapping:
    """Put existing executable pages on a memfd, where they are, and return the mapping.

    `base` and `size` (bytes) are widened to whole pages. Code that runs there at the same time is not disturbed: it
    finds the same bytes. Raises OSError if the kernel refuses.
    """
    low = base & -PAGE
    high = (base + size + PAGE - 1) & -PAGE
    with text_mutex:
        forks = forks_seen()
        return TextMapping(low, high - low, name, _map_again(low, high - low, name), forks)


_COPIED_AT_ONCE = 4 << 20
"""Bytes of text that are in memory twice while it is copied.

Of a program that is probed: a larger block, once freed, would also have glibc put the program's own into the heap.
"""


def _map_again(base: int, size: int, name: str) -> int:
    """`map_twice` with the contents that are there, which are copied piece by piece.

    If this raises OSError, some pieces are on the file. They are the same.
    """
    try:
        fd = filled(size, name)
    except OSError as error:
        if error.errno not in SCARCE:
            raise
        return map_twice(base, ctypes.string_at(base, size), name)
    try:
        alias = mmap_at(None, size, PROT_NONE, MAP_SHARED, fd)
        try:
            for at in range(0, size, _COPIED_AT_ONCE):
                piece = min(_COPIED_AT_ONCE, size - at)
                write_all(fd, ctypes.string_at(base + at, piece))
                mmap_at(base + at, piece, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, at)
        except OSError:
            libc.munmap(alias, size)
            raise
    finally:
        os.close(fd)
    return alias


LARGE = 32 << 20
"""Bytes of text from which on pieces pay."""
_PIECE = 1 << 20


class LargeText(TextMapping):
    """Text of which pieces are on memory files, one each, as they are needed: see `prepare`. The rest is as it was."""

    def __init__(self, base: int, size: int, name: str) -> None:
        low, high = base & -PAGE, (base + size + PAGE - 1) & -PAGE
        super().__init__(low, high - low, name, reserve(high - low), forks_seen())
        mprotect(self._alias, self.size, PROT_NONE)
        self._pieces = list[int]()

    @property
    def parts(self) -> list[tuple[int, int]]:
        return [(number * _PIECE, self._size_of(number)) for number in self._pieces]

    def prepare(self, addresses: Iterable[int]) -> None:
        wanted = {number for address in addresses for number in self._near(address - self.base)}
        with text_mutex:
            for number in sorted(wanted.difference(self._pieces)):
                self._fill(number)

    def _near(self, offset: int) -> range:
        """The pieces within a page of an offset."""
        return range(max(offset - PAGE, 0) // _PIECE, min(offset + PAGE, self.size - 1) // _PIECE + 1)

    def write(self, address: int, data: bytes) -> None:
        self.prepare([address])
        super().write(address, data)

    def _fill(self, number: int) -> None:
        offset, size = number * _PIECE, self._size_of(number)
        alias = self._alias + offset
        map_twice(self.base + offset, ctypes.string_at(self.base + offset, size), self.name, alias=alias)
        self._pieces.append(number)
        if self._is_open:
            mprotect(alias, size, PROT_READ | PROT_WRITE)

    def _size_of(self, number: int) -> int:
        return min(_PIECE, self.size - number * _PIECE)
