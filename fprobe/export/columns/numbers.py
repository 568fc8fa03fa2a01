"""Tables of numbers for keys, as native code."""

from __future__ import annotations

from ftrace.hit.hashing import GOLDEN
from sandbox.native import *


@struct
class Table(Structure):
    """Numbers from 1 on for keys other than 0. `keys` and `numbers` are hashed; `listed` has the key of each number."""

    keys: ptr[u64]
    numbers: ptr[u32]
    listed: ptr[u64]
    mask: u64
    count: u64


@native(inline=True)
def _place(table: ptr[Table], key: u64) -> u64:
    """Where a key is in a table, or would be."""
    at = key * GOLDEN >> 20 & table.mask
    while table.keys[at] != 0 and table.keys[at] != key:
        at = at + 1 & table.mask
    return at


@native(bounded=False)
def number_of(table: ptr[Table], key: u64) -> u32:
    """The number of a key, which is added unless it is there. 0 if the table is too full for that."""
    at = _place(table, key)
    if table.keys[at] == key:
        return table.numbers[at]
    if (table.count + 1) * 2 > table.mask:
        return 0
    table.count += 1
    table.keys[at] = key
    table.numbers[at] = u32(table.count)
    table.listed[table.count] = key
    return u32(table.count)


@native(bounded=False)
def refill(table: ptr[Table], listed: ptr[u64], count: u64) -> void:
    """Give the keys in a list their numbers in an empty table."""
    for number in range(count):
        number_of(table, listed[number + 1])


@native(bounded=False)
def is_in(table: ptr[Table], key: u64) -> u64:
    """1 if the table has the key."""
    return u64(1) if table.keys[_place(table, key)] == key else u64(0)
