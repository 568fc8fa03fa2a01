"""A hash table from addresses to words, which hits read without locks while it is written and grows.

Open addressing. An entry keeps its address for good; its word may become 0. A table that is half full is replaced by
one of twice the size; the old one is kept, since a hit may be reading it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrace.hit.hashing import first_place
from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u64,
    void,
)

if TYPE_CHECKING:
    from sandbox.loading.native_image import NativeImage

_FIRST_BITS = 10


@struct
class Entry(Structure):
    """An address that has, or had, a word."""

    address: u64
    word: u64


@struct
class Table(Structure):
    """The entries, and how an address is hashed."""

    shift: u64
    mask: u64
    entries: array[Entry, 1048576]


@native(bounded=False)
def entry_of(table: ptr[Table], address: u64) -> ptr[Entry]:
    """The entry of an address, or the free one where it belongs."""
    index = first_place(address, table.shift)
    while True:
        entry = cast(ptr[Entry], addressof(table.entries[index]))
        found = load(addressof(entry.address), "acquire")
        if found == address or found == 0:
            return entry
        index = (index + 1) & table.mask


@native
def look_up(table: ptr[Table], address: u64) -> u64:
    """The word of an address; 0 if it has none."""
    if table == null:
        return 0
    entry = entry_of(table, address)
    if entry.address != address:
        return 0
    return load(addressof(entry.word), "acquire")


@native
def table_set(table: ptr[Table], address: u64, word: u64) -> void:
    """One writer at a time: the word is there before its address is."""
    entry = entry_of(table, address)
    store(addressof(entry.word), word, "release")
    store(addressof(entry.address), address, "release")


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
