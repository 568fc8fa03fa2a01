"""libgcc's unwinder: the frame description of any code in the process, and the landing pads that it names.

The unwinder finds a function's description in libraries and in compiled programs alike. Landing pads of exceptions are in the
function's language-specific data (.gcc_except_table).
"""

from __future__ import annotations

import ctypes
from typing import Any

from sandbox.elf.dwarf_reader import Reader
from sandbox.elf.ehframe import encodings

_ABSENT = "No such file"
_loaded: list[ctypes.CDLL] = []
_OMITTED = 0xFF
_FDE_HEAD = 8
"""Bytes of an FDE in front of its addresses: its length, and how far back its CIE is."""


def unwinder() -> ctypes.CDLL | None:
    """The library, loaded if need be; None if this system has none.

    Raises OSError if it has one that cannot be loaded now, say because no descriptor is free.
    """
    if not _loaded:
        try:
            _loaded.append(ctypes.CDLL("libgcc_s.so.1"))
        except OSError as error:
            if _ABSENT in str(error):
                return None
            raise
    return _loaded[0]


def registrars() -> tuple[Any, Any]:
    """The functions that register and unregister sections with the unwinder of the process's C++ code."""
    library = unwinder()
    if library is None:
        return _nobody, _nobody
    functions = (library.__register_frame, library.__deregister_frame)
    for function in functions:
        function.argtypes, function.restype = (ctypes.c_void_p,), None
    return functions


def _nobody(_section: object) -> None:
    """Used if the process has no unwinder."""


class _Bases(ctypes.Structure):
    """A `dwarf_eh_bases`."""

    _fields_ = [("text", ctypes.c_void_p), ("data", ctypes.c_void_p), ("function", ctypes.c_void_p)]


def find_fde(address: int) -> tuple[int, int] | None:
    """The start of the code around `address`, and the address of its FDE; None if it has no FDE.

    Asks `const fde *_Unwind_Find_FDE(void *pc, struct dwarf_eh_bases *)`. Raises OSError as `unwinder()` does.
    """
    find, bases = getattr(unwinder(), "_Unwind_Find_FDE", None), _Bases()
    if find is None:
        return None
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_void_p
    found = find(address, ctypes.byref(bases))
    return (bases.function, found) if found else None


def landing_pads(start: int) -> tuple[int, ...]:
    """Addresses that exceptions thrown by calls of the function at `start` land at, ascending.

    Raises OSError if the unwinder cannot be loaded now.
    """
    found = find_fde(start)
    table = _table_of(found[1]) if found else 0
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
