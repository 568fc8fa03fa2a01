"""Look-up of records by addresses of text and of slots; the trap handler reads the table without locks."""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from kprobes.hit.records import Record
from sandbox.native import addressof, cast, global_var, load, native, null, ptr, u64

SLOT_SIZE = 64
"""Size and alignment of a slot, in bytes. An address in a slot is looked up by the slot's address."""

current_table = global_var(u64, 0, name="kprobe_table")


@native
def find_record(address: u64) -> ptr[Record]:
    """The record of a probed address, or of a slot's address; null if there is none."""
    return cast(ptr[Record], look_up(cast(ptr[Table], load(addressof(current_table), "acquire")), address))


@native
def find_slot(address: u64) -> ptr[Record]:
    """The record whose slot contains the address; null if there is none."""
    base = address & ~cast(u64, SLOT_SIZE - 1)
    record = find_record(base)
    if record == null or record.slot != base:
        return null
    return record
