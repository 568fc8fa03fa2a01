"""Multiplicative hashing: the first index of a key in an open-addressing table whose size is a power of two."""

from __future__ import annotations

import ctypes
from typing import Any

from sandbox.native import *

GOLDEN = 0x9E37_79B9_7F4A_7C15
"""2**64 divided by the golden ratio."""


@native(inline=True)
def first_place(key: u64, shift: u64) -> u64:
    """An index; `shift` is 64 less the number of its bits."""
    return (key * GOLDEN) >> shift


@native(inline=True)
def entry_of(entries: u64, size: u64, mask: u64, shift: u64, ip: u64) -> u64:
    """The address of a function's entry in a `FunctionTable` with entries of `size` bytes; 0 if it has none."""
    index = first_place(ip, shift)
    for _ in range(64):
        entry = entries + index * size
        found = cast(ptr[u64], entry)[0]
        if found == ip:
            return entry
        if found == 0:
            return 0
        index = (index + 1) & mask
    return 0


class FunctionTable:
    """Functions in a table that Python fills and native code reads.

    `entry`: the ctypes structure of an entry, whose first field is `ip`, 0 while it is free; `functions`: how many there will be.
    """

    def __init__(self, entry: Any, functions: int) -> None:
        bits = max(4, (2 * functions).bit_length())
        self.mask, self.shift = (1 << bits) - 1, 64 - bits
        self._entries: Any = (entry * (1 << bits))()

    @property
    def address(self) -> int:
        """Of the first entry."""
        return ctypes.addressof(self._entries)

    def add(self, ip: int) -> Any:
        """The entry of a function, which has none yet."""
        index = (ip * GOLDEN & (1 << 64) - 1) >> self.shift
        while self._entries[index].ip:
            index = index + 1 & self.mask
        self._entries[index].ip = ip
        return self._entries[index]
