"""Text of addresses in records, as seq_print_ip_sym() of kernel/trace/trace_output.c."""

from __future__ import annotations

import contextlib

from ftrace.core.runtime import RUNTIME
from sandbox.images.process_text import symbol_at
from sandbox.symbols.table import Location, symbol_table

_RUNTIME = f" [{RUNTIME}]"
"""Not shown: the functions of the hit path correspond to the kernel's own, which have no module."""


def _located(address: int) -> Location | None:
    """The symbol and offset of an address, in a module or else in a library or other named code."""
    if found := symbol_table.locate(address):
        return found
    with contextlib.suppress(OSError):  # of a file that cannot be read
        if symbol := symbol_at(address):
            return Location(symbol, address - symbol.address)
    return None


def named(address: int, *, offset: bool) -> str | None:
    """`symbol[+0xoffset/0xsize] [module]`; None if no symbol covers the address."""
    found = _located(address)
    return str(found if offset else found.symbol).removesuffix(_RUNTIME) if found else None


def with_offset(address: int) -> str:
    """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""
    return named(address, offset=True) or symbol_table.describe(address)


def plain(address: int) -> str:
    """`symbol [module]`; the bare address if no symbol covers it."""
    return named(address, offset=False) or f"0x{address:08x}"
