"""A hash table from addresses to words, which hits read without locks while it is written and grows.

Open addressing. An entry keeps its address for good; its word may become 0. `ftrace.core.runtime.AddressTable` writes it.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from sandbox.native import *


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
