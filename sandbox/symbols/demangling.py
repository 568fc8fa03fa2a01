"""Names of functions of C++, taken apart by the C++ library of the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1")
_OPENING, _CLOSING = "(<[{", ")>]}"


def parameter_count(symbol: str) -> int | None:
    """The number of parameters in a mangled name, without `...`; None if it has none or cannot be taken apart."""
    written = _demangled(symbol) if symbol.startswith("_Z") else ""
    end = written.rfind(")")
    depth, commas = 0, 0
    for at in range(end, -1, -1):
        depth += (written[at] in _CLOSING) - (written[at] in _OPENING)
        commas += written[at] == "," and depth == 1
        if not depth:
            inside = written[at + 1 : end]
            return commas + bool(inside) - inside.endswith("...")
    return None


@functools.lru_cache(maxsize=1024)
def _demangled(symbol: str) -> str:
    """The name as C++ writes it; '' if that is not known."""
    functions = _functions()
    if functions is None:
        return ""
    demangle, free = functions
    address = demangle(symbol.encode(), None, None, ctypes.byref(ctypes.c_int()))
    try:
        return ctypes.string_at(address).decode(errors="replace") if address else ""
    finally:
        free(address)


@functools.cache
def _functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """`__cxa_demangle` and `free`; None if there is no C++ library."""
    for name in _LIBRARIES:
        try:
            demangle = ctypes.CDLL(name)["__cxa_demangle"]
        except (OSError, AttributeError):
            continue
        demangle.restype = ctypes.c_void_p
        free = ctypes.CDLL(None)["free"]
        free.argtypes = [ctypes.c_void_p]
        return demangle, free
    return None
