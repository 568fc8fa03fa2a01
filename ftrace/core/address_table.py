"""The writing side of the hash tables from addresses to words that hits read without locks.

A table that is half full is replaced by one of twice the size; the old one is kept, since a hit may be reading it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrace.hit.address_table import Entry, Table

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

_FIRST_BITS = 10


class AddressTable:
    """The writing side, for one writer at a time.

    `image` has `table_set`; `publish` is called with the address of the native Table, now and whenever it changes.
    """

    def __init__(self, image: NativeImage, publish: Callable[[int], None]) -> None:
        self._image = image
        self._publish = publish
        self._entries: dict[int, int] = {}
        self._kept: list[Any] = []
        self._table = 0
        self._bits = _FIRST_BITS
        self._replace()

    def __getitem__(self, address: int) -> int:
        return self._entries[address]

    def __contains__(self, address: int) -> bool:
        return address in self._entries

    def set(self, address: int, word: int) -> None:
        """Let `address` lead to `word`, or (0) to nothing."""
        self._entries[address] = word
        if len(self._entries) * 2 > 1 << self._bits:
            self._bits += 1
            self._replace()
        else:
            self._image.call("table_set", self._table, address, word)

    def _replace(self) -> None:
        size = Table.offset("entries") + Entry.size * (1 << self._bits)
        memory = (ctypes.c_uint64 * (size // 8))()
        memory[0], memory[1] = 64 - self._bits, (1 << self._bits) - 1
        self._kept.append(memory)
        self._table = ctypes.addressof(memory)
        self._entries = {address: word for address, word in self._entries.items() if word}
        for address, word in self._entries.items():
            self._image.call("table_set", self._table, address, word)
        self._publish(self._table)
