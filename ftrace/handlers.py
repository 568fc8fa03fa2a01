"""A handler's code, whichever kind of probe it is for, and what C functions look like from Python."""

from __future__ import annotations

import ctypes
import inspect
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Resolved:
    """A handler's code. `kind`: flags of ftrace.hit.records. `plain`: native code that
    keeps its registers. `wants_regs`: it looks at its `regs`. `cookie`: what it gets
    as `fp`, if not the address of the native probe. `keep`: what keeps it alive.
    """

    address: int
    kind: int = 0
    plain: bool = False
    wants_regs: bool = True
    cookie: int = 0
    keep: Any = None


_CFunction: Any = ctypes.CFUNCTYPE(None).__base__
"""The class of every ctypes function pointer."""

NO_HANDLER = Resolved(0)


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def foreign_address(handler: Any) -> int | None:
    """The address of C code, or None: ctypes, cffi, a Numba cfunc, a function of a loaded module."""
    if isinstance(handler, _CFunction):
        return _pointer(handler)
    if type(handler).__module__ == "_cffi_backend":
        return _cffi_address(handler)
    address = getattr(handler, "address", None)
    return address if isinstance(address, int) and not inspect.isfunction(handler) else None


def _cffi_address(handler: Any) -> int:
    import cffi

    return int(cffi.FFI().cast("uintptr_t", handler))
