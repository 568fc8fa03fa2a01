"""Attributes that functions get before Numba compiles them: a stub and, on request, `noinline`.

Numba builds a module for each function, whose text LLVM reads; marks are in place before that, and survive all passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandbox.compile.program import IDENT, MARK
from sandbox.compile.stubs import Flavour, attributes_of
from sandbox.images.numba.mangling import user_name
from sandbox.process.once import once

STUBS, NOINLINE = "fprobe-stubs", "fprobe-noinline"
"""Marks, as parts of the keys of Numba's cache, which keeps code with different marks in different entries."""
_wanted: list[str] = []


def mark(*marks: str) -> None:
    """From now on give these marks to what Numba compiles. Raises ImportError if it is not installed.

    Functions that Numba itself inlines (`inline="always"`), or forces LLVM to inline, still are.
    """
    _hook()
    _wanted.extend(it for it in marks if it not in _wanted)


@once
def _hook() -> None:
    from numba.core import codegen

    library: Any = codegen.JITCodeLibrary
    library.add_ir_module = _marking(library.add_ir_module)
    kind: Any = codegen.JITCPUCodegen
    kind.magic_tuple = _with_marks(kind.magic_tuple)


def _marking(add: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def add_ir_module(library: Any, module: Any) -> Any:
        users = [function for function in module.functions if not function.is_declaration and _is_users(function.name)]
        for function in users:
            _mark(function.attributes)
        if users and STUBS in _wanted:
            module.add_named_metadata(IDENT, [MARK])
        return add(library, module)

    return add_ir_module


def _is_users(symbol: str) -> bool:
    named = user_name(symbol)
    return named is not None and not named.function.startswith("numba.")


def _mark(attributes: Any) -> None:
    if STUBS in _wanted:
        attributes.add("uwtable")
        set.add(attributes, attributes_of(Flavour.PATCHABLE))  # its own add() knows no attributes that are strings
    if NOINLINE in _wanted and "alwaysinline" not in attributes:
        attributes.add("noinline")


def _with_marks(magic: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    def magic_tuple(codegen: Any) -> tuple[Any, ...]:
        return (*magic(codegen), *sorted(_wanted))

    return magic_tuple
