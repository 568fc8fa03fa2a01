"""Calls that are not there: functions that LLVM has inlined into others, and how to have it leave them alone.

A library of Numba is linked with those of the functions that it calls, and optimised. A callee whose symbol is not in it
afterwards has been inlined everywhere.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sandbox.numba.mangling import user_name
from sandbox.process.once import once


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
    kind = codegen.CPUCodeLibrary if codegen else ()
    for library in [it for it in gc.get_objects() if codegen and issubclass(type(it), kind)]:
        if library._finalized:
            yield from ((library, linked) for linked in library._linking_libraries)


def _symbols(library: Any) -> list[str]:
    return [function.name for function in library._final_module.functions]


def _functions_of(library: Any) -> set[Any]:
    """The functions for which Numba has made the library: those with a wrapper for Python or C."""
    names = _symbols(library)
    wrapped = {name.removeprefix("cfunc.") for name in names if name.startswith("cfunc.")}
    return {name for symbol in names if symbol in wrapped and (name := user_name(symbol))}


@once
def keep_calls() -> None:
    """From now on let Numba compile functions that are not inlined into others, apart in its cache.

    `inline="always"`, which Numba does itself, still is. Raises ImportError if Numba is not installed.
    """
    from numba.core import codegen

    cls: Any = codegen.CPUCodeLibrary
    cls.add_llvm_module = _marking(cls.add_llvm_module)
    kind: Any = codegen.JITCPUCodegen
    kind.magic_tuple = _telling(kind.magic_tuple)


def _marking(add: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def add_llvm_module(library: Any, module: Any) -> Any:
        for function in module.functions:
            named = None if function.is_declaration else user_name(function.name)
            if named is not None and not named.function.startswith("numba."):
                function.add_function_attribute("noinline")
        return add(library, module)

    return add_llvm_module


def _telling(magic: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def magic_tuple(codegen: Any) -> tuple[Any, ...]:
        return (*magic(codegen), "fprobe-noinline")

    return magic_tuple
