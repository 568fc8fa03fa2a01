"""The text as it would be without probes."""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from collections.abc import Callable

from ftrace.sites.locations import LocationTable
from ftrace.x86_64.stubs import SITE_SIZE

overlays: list[Callable[[int, bytearray], None]] = []
"""Functions that undo, in bytes read at an address, what another kind of probe has written. kprobes add theirs."""


def original_text(table: LocationTable, address: int, size: int) -> bytes:
    """The `size` bytes at `address` as they would be without ftrace and the probes in `overlays`."""
    code = bytearray(ctypes.string_at(address, size))
    for block in table.patched_blocks():
        first = bisect_left(block.addresses, address - SITE_SIZE + 1)
        for index in range(first, bisect_left(block.addresses, address + size, first)):
            if block.is_made(index):
                overlay(code, block.addresses[index] - address, block.text_of(index))
    for put_back in overlays:
        put_back(address, code)
    return bytes(code)


def overlay(code: bytearray, offset: int, data: bytes) -> None:
    """Copy `data` to an offset of `code`, as far as it fits."""
    at = max(offset, 0)
    within = data[at - offset : max(len(code) - offset, 0)]
    code[at : at + len(within)] = within
