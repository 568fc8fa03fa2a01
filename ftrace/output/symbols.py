"""Addresses as records show them: seq_print_ip_sym() of kernel/trace/trace_output.c."""

from __future__ import annotations

from ftrace.output.options import TraceOptions
from sandbox.symbols.table import symbol_table


def with_offset(address: int) -> str:
    """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""
    return symbol_table.describe(address)


def plain(address: int) -> str:
    """`symbol [module]`; the bare address if no symbol covers it."""
    found = symbol_table.locate(address)
    return str(found.symbol) if found else f"0x{address:08x}"


def ip_sym(address: int, options: TraceOptions, *, offset: bool | None = None) -> str:
    """An address of a record. `offset`: whether the symbol has its offset, whatever the option sym-offset says."""
    if not address:
        return "0"
    offset = options["sym-offset"] if offset is None else offset
    text = with_offset(address) if offset else plain(address)
    return f"{text} <{address:016x}>" if options["sym-addr"] else text
