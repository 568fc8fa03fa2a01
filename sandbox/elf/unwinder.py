"""libgcc's unwinder, which the C++ code of this process uses."""

from __future__ import annotations

import ctypes

_ABSENT = "No such file"
_loaded: list[ctypes.CDLL] = []


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


class _Bases(ctypes.Structure):
    _fields_ = [("text", ctypes.c_void_p), ("data", ctypes.c_void_p), ("function", ctypes.c_void_p)]


def find_fde(address: int) -> tuple[int, int] | None:
    """Where the code around `address` begins, and the address of the FDE that describes it; None if none does."""
    library = unwinder()
    if library is None:
        return None
    find, bases = library._Unwind_Find_FDE, _Bases()
    find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_void_p
    found = find(address, ctypes.byref(bases))
    return (bases.function, found) if found else None
