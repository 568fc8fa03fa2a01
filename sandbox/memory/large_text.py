"""Existing text that is too large to be copied: only pieces around what is written are put on memory files."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from sandbox.memory.mappings import TextMapping, forks_seen, map_twice, reserve, text_mutex
from sandbox.memory.pages import PAGE, PROT_NONE, PROT_READ, PROT_WRITE, mprotect

LARGE = 32 << 20
"""Bytes of text from which on it pays."""
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
