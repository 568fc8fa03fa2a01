"""The landing pads of exceptions in a function, from its language-specific data (.gcc_except_table).

The unwinder finds a function's description, in libraries and in compiled programs.
"""

from __future__ import annotations

import ctypes
from typing import Any

from sandbox.elf.dwarf_reader import Reader
from sandbox.elf.ehframe import encodings
from sandbox.elf.unwinder import unwinder

_OMITTED = 0xFF
_Bases = ctypes.c_void_p * 3
"""A `dwarf_eh_bases`."""
_FDE_HEAD = 8
"""Bytes of an FDE in front of its addresses: its length, and how far back its CIE is."""


def _find_fde() -> Any:
    """`const fde *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *)`; None if there is no such unwinder."""
    find = getattr(unwinder(), "_Unwind_Find_FDE", None)
    if find is None:
        return None
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_void_p)
    return find


def landing_pads(start: int) -> tuple[int, ...]:
    """Addresses that exceptions thrown by calls of the function at `start` land at, ascending.

    Raises OSError if the unwinder cannot be loaded now.
    """
    find = _find_fde()
    bases = _Bases()
    fde = find(start, bases) if find else None
    table = _table_of(fde) if fde else 0
    return _pads(table, start) if table else ()


def _table_of(fde: int) -> int:
    """The address of the language-specific data that an FDE names, or 0."""
    cie = fde + 4 - ctypes.c_int32.from_address(fde + 4).value
    how = encodings(cie)
    if "L" not in how:
        return 0
    reader = Reader(fde + _FDE_HEAD)
    reader.value(how.get("R", 0))
    reader.value(how.get("R", 0) & 0x0F)
    reader.uleb()
    return reader.value(how["L"])


def _pads(table: int, start: int) -> tuple[int, ...]:
    reader = Reader(table)
    encoding = reader.byte()
    base = start if encoding == _OMITTED else reader.value(encoding)
    if reader.byte() != _OMITTED:
        reader.uleb()
    encoding, size = reader.byte(), reader.uleb()
    end = reader.position + size
    pads = set()
    while reader.position < end:
        _begin, _length, pad = (reader.value(encoding) for _ in range(3))
        reader.uleb()
        if pad:
            pads.add(base + pad)
    return tuple(sorted(pads))
