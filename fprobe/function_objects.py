"""Functions of other packages as targets of probes: of ctypes, cffi, Numba and llvmlite."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_CTYPES: Any = ctypes.CFUNCTYPE(None).__mro__[-3]
"""The base of functions of ctypes."""


def target_of(function: Any) -> Any:
    """The pattern, the names or the addresses that a function object stands for; any other target as it is.

    A function of ctypes or cffi is the code at its address; of Numba, all specialisations of the function, also later ones; of
    llvmlite, the function of that name.
    """
    if isinstance(function, (str, list, tuple)):
        return function
    if isinstance(function, _CTYPES):
        return [ctypes.cast(function, ctypes.c_void_p).value]
    cffi: Any = sys.modules.get("_cffi_backend")
    if cffi is not None and isinstance(function, cffi.FFI.CData) and cffi.typeof(function).kind == "function":
        return [int(cffi.cast(cffi.new_primitive_type("uintptr_t"), function))]
    if "numba" in sys.modules and hasattr(function, "py_func"):
        return f"numba:{function.py_func.__module__}.{function.py_func.__qualname__}"
    kind = type(function)
    if kind.__module__.startswith("llvmlite.") and kind.__name__ in ("Function", "ValueRef"):
        return [function.name]
    return function
