"""From an address in the text, or in a slot, to the record of the probe there. The trap handler reads it without locks.

Open addressing; an entry keeps its address for good, and loses its record when the code is gone. A table that is half
full is replaced by one of twice the size; the old one stays, since a trap handler may be reading it.
"""

from __future__ import annotations

import ctypes
from typing import Any

from kprobes.hit.records import Record
from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    global_var,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u64,
    void,
)

_GOLDEN = 0x9E37_79B9_7F4A_7C15
_FIRST_BITS = 10
SLOT_SIZE = 64
"""Bytes of a slot, and its alignment: an address in a slot is looked up by the slot's."""


@struct
class Entry(Structure):
    """An address that is, or was, somebody's."""

    address: u64
    record: ptr[Record]


@struct
class Table(Structure):
    """The entries, and how an address is hashed."""

    shift: u64
    mask: u64
    entries: array[Entry, 1048576]


current_table = global_var(u64, 0, name="kprobe_table")


@native
def entry_of(table: ptr[Table], address: u64) -> ptr[Entry]:
    """The entry of an address, or the free one where it belongs."""
    index = (address * _GOLDEN) >> table.shift
    while True:
        entry = cast(ptr[Entry], addressof(table.entries[index]))
        found = load(addressof(entry.address), "acquire")
        if found == address or found == 0:
            return entry
        index = (index + 1) & table.mask


@native
def find_record(address: u64) -> ptr[Record]:
    """The record of a probed address or of a slot; null if there is none."""
    table = cast(ptr[Table], load(addressof(current_table), "acquire"))
    if table == null:
        return null
    entry = entry_of(table, address)
    if entry.address != address:
        return null
    return cast(ptr[Record], load(addressof(entry.record), "acquire"))


@native
def find_slot(address: u64) -> ptr[Record]:
    """The record whose slot the address lies in; null if it lies in none."""
    base = address & ~cast(u64, SLOT_SIZE - 1)
    record = find_record(base)
    if record == null or record.slot != base:
        return null
    return record


@native
def table_set(table: ptr[Table], address: u64, record: u64) -> void:
    """One writer at a time: the record is there before its address is."""
    entry = entry_of(table, address)
    store(addressof(entry.record), cast(ptr[Record], record), "release")
    store(addressof(entry.address), address, "release")


class RecordTable:
    """The writing side. Its caller holds the kprobes' mutex."""

    def __init__(self, image: Any) -> None:
        self._image = image
        self._entries: dict[int, int] = {}
        self._kept: list[Any] = []
        self._bits = _FIRST_BITS
        self._replace()

    def set(self, address: int, record: int) -> None:
        """Let `address` lead to the record at `record`, or (0) to none."""
        self._entries[address] = record
        if len(self._entries) * 2 > 1 << self._bits:
            self._bits += 1
            self._replace()
        else:
            self._image.call("table_set", ctypes.addressof(self._kept[-1]), address, record)

    def _replace(self) -> None:
        size = Table.offset("entries") + Entry.size * (1 << self._bits)
        memory = (ctypes.c_uint64 * (size // 8))()
        memory[0], memory[1] = 64 - self._bits, (1 << self._bits) - 1
        self._kept.append(memory)
        self._entries = {address: record for address, record in self._entries.items() if record}
        for address, record in self._entries.items():
            self._image.call("table_set", ctypes.addressof(memory), address, record)
        self._image.variable("kprobe_table").value = ctypes.addressof(memory)
