"""From an address in the text, or in a slot, to the record of the probe there. The trap handler reads it without locks."""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from kprobes.hit.records import Record
from sandbox.native import addressof, cast, global_var, load, native, null, ptr, u64

SLOT_SIZE = 64
"""Bytes of a slot, and its alignment: an address in a slot is looked up by the slot's."""

current_table = global_var(u64, 0, name="kprobe_table")


@native
def find_record(address: u64) -> ptr[Record]:
    """The record of a probed address or of a slot; null if there is none."""
    return cast(ptr[Record], look_up(cast(ptr[Table], load(addressof(current_table), "acquire")), address))


@native
def find_slot(address: u64) -> ptr[Record]:
    """The record whose slot the address lies in; null if it lies in none."""
    base = address & ~cast(u64, SLOT_SIZE - 1)
    record = find_record(base)
    if record == null or record.slot != base:
        return null
    return record
