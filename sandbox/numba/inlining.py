"""Calls that are not there: functions that LLVM has inlined into others.

A library of Numba is linked with those of the functions that it calls, and optimised. A callee whose symbol is not in it
afterwards has been inlined everywhere.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

from sandbox.numba.mangling import user_name


def inlined() -> dict[str, set[str]]:
    """Function -> the functions into which all its calls have been inlined, both by module and qualified name.

    Says nothing of code that comes from Numba's cache, which does not tell what it was linked with.
    """
    found: dict[str, set[str]] = {}
    for caller, callee in _linked():
        into, what = _functions_of(caller), _functions_of(callee)
        remaining = {name for name in map(user_name, _symbols(caller)) if name}
        for name in what:
            if name not in remaining and into:
                found.setdefault(str(name), set()).update(str(one) for one in into)
    return found


def _linked() -> Iterator[tuple[Any, Any]]:
    """Each finished library of Numba with each that it was linked with."""
    codegen = sys.modules.get("numba.core.codegen")
    if codegen is None:
        return
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, codegen.CPUCodeLibrary)}
    for library in [it for it in objects if type(it) in kinds]:
        if library._finalized:
            yield from ((library, linked) for linked in library._linking_libraries)


def _symbols(library: Any) -> list[str]:
    return [function.name for function in library._final_module.functions]


def _functions_of(library: Any) -> set[Any]:
    """The functions for which Numba has made the library: those with a wrapper for Python or C."""
    names = _symbols(library)
    wrapped = {name.removeprefix("cfunc.") for name in names if name.startswith("cfunc.")}
    return {name for symbol in names if symbol in wrapped and (name := user_name(symbol))}
