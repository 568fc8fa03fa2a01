"""What may be a handler: a Python callable, a C function pointer, a function of a loaded module, a native function, or a
built-in action. Each becomes an address with what the hit path has to know of it.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftrace.records import FOREIGN

EntryHandler = Callable[..., Any]
ExitHandler = Callable[..., Any]


@dataclass(frozen=True)
class Resolved:
    """A handler's code. `kind`: flags of ftrace.records. `plain`: native code that
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


def resolve(handler: Any, is_exit: bool, of_python: Callable[[Any, bool], Resolved]) -> Resolved:
    """The code of `handler`; `of_python` does it for a Python callable.

    Raises TypeError naming what cannot be a handler.
    """
    if handler is None:
        return NO_HANDLER
    if isinstance(handler, Resolved):
        return handler
    from sandbox.native import NativeFunction

    if isinstance(handler, NativeFunction):
        return _native(handler, is_exit)
    address = _foreign_address(handler)
    if address is not None:
        return Resolved(address, FOREIGN, keep=handler)
    if callable(handler):
        return of_python(handler, is_exit)
    raise TypeError(f"not a handler: {handler!r}; give a callable, a C function pointer or a native function")


def data_size_of(given: int, *handlers: Any) -> int:
    """Bytes of entry data for `handlers`: `given`, or if that is 0 what native handlers say that they use.

    Raises ValueError if `given` is too little for them.
    """
    wanted = max((getattr(handler, "data_size", 0) for handler in handlers), default=0)
    if 0 < given < wanted:
        raise ValueError(f"entry_data_size is {given}, and the handlers' entry data takes {wanted} bytes")
    return given or wanted


def _pointer(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _foreign_address(handler: Any) -> int | None:
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


def _native(handler: Any, is_exit: bool) -> Resolved:
    from fprobe.native_handler import compiled

    return compiled(handler, is_exit)
