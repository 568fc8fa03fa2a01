"""Text of addresses in records, as seq_print_ip_sym() of kernel/trace/trace_output.c."""

from __future__ import annotations

import contextlib

from ftrace.core.runtime import RUNTIME
from ftrace.tracing.output.options import TraceOptions
from sandbox.memory.mappings import mappings
from sandbox.symbols.process_text import symbol_at
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


def in_object(address: int, options: TraceOptions) -> str:
    """An address in user space: `FILE[+0xoffset]` with the option sym-userobj, from where FILE is mapped. seq_print_user_ip()."""
    start, file = _file_at(address) if options["sym-userobj"] else (0, "")
    where = f"{file}[+{address - start:#x}]" if file else ""
    return where if file and not options["sym-addr"] else f"{where} <{address:016x}>"


def _file_at(address: int) -> tuple[int, str]:
    """The start and the file of the mapping that contains an address, or else of the next one."""
    start, _, _, path = next((each for each in mappings() if each[1] > address), (0, 0, "", ""))
    return start, path if path.startswith("/") else ""


def ip_sym(address: int, options: TraceOptions, *, offset: bool | None = None) -> str:
    """The text of an address. `offset`: whether to add the offset; None: according to the option sym-offset."""
    if not address:
        return "0"
    offset = options["sym-offset"] if offset is None else offset
    text = with_offset(address) if offset else plain(address)
    return f"{text} <{address:016x}>" if options["sym-addr"] else text
