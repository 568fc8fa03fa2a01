"""The back end: lowering a unit to the text of one LLVM module, with a symbol for everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.native.back.lowering import definition
from sandbox.native.back.metadata import Metadata
from sandbox.native.back.module import GENERAL_REGISTERS_ONLY, ModuleText
from sandbox.native.front import graph
from sandbox.native.front.declarations import Extern, GlobalVariable
from sandbox.native.function import NativeFunction
from sandbox.native.unit import Unit


def ir(unit: Unit) -> str:
    """*unit* as LLVM IR text, with debug information.

    Raises NativeError for the first thing that is not in the language (in a bounded unit also a loop without a visible
    bound), ValueError for clashing names.
    """
    functions = graph.check(unit.functions, unit.bounded)
    symbols = _Names(unit.functions).assign(functions)
    first = functions[0].filename if functions else unit.name
    module = ModuleText(Metadata(unit.name, first), symbols, unit.checked)
    texts = [_definition(unit, module, function, symbols[function]) for function in functions]
    return module.text(unit.name, unit.assembly_text, texts, unit.llvm)


def _definition(unit: Unit, module: ModuleText, function: NativeFunction, symbol: str) -> str:
    visible = function in unit.functions or function.options.export
    linkage = "dso_local " if visible else "internal "
    attributes = _attributes(unit, function)
    return definition(module, function.typed, symbol, attributes, function.cc, linkage)


def _attributes(unit: Unit, function: NativeFunction) -> str:
    options = function.options
    words = ["nounwind", "uwtable", '"no-builtins"', f'"target-features"="{GENERAL_REGISTERS_ONLY}"']
    words += ["alwaysinline"] * options.inline + ["noinline"] * options.noinline
    words += ['"notrace"'] * options.notrace + ['"nokprobe"'] * options.nokprobe
    words += [] if unit.red_zone else ["noredzone"]
    return " ".join(words)


class _Names:
    """Gives every function and variable of a unit a symbol of its own."""

    def __init__(self, entries: Sequence[NativeFunction]) -> None:
        self._entries = entries
        self._taken: dict[str, Any] = {}
        self._symbols: dict[Any, str] = {}

    def assign(self, functions: Sequence[NativeFunction]) -> dict[Any, str]:
        fixed = [f for f in functions if f in self._entries or f.options.export]
        for function in fixed:
            self._fix(function, function.name)
        for function in functions:
            for place in function.typed.globals:
                self._variable(place.name.rpartition(".")[2], place.variable)
        for function in functions:
            if function not in self._symbols:
                self._free(function, function.name)
        return self._symbols

    def _variable(self, name: str, variable: GlobalVariable | Extern) -> None:
        if isinstance(variable, Extern) or variable in self._symbols:
            return
        if variable.symbol:
            self._fix(variable, variable.symbol)
        else:
            self._free(variable, name)

    def _fix(self, owner: Any, name: str) -> None:
        if name in self._taken:
            raise ValueError(f"two things of this unit are called {name}: give one another name")
        self._taken[name] = owner
        self._symbols[owner] = name

    def _free(self, owner: Any, name: str) -> None:
        candidate, number = name, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{name}.{number}"
        self._taken[candidate] = owner
        self._symbols[owner] = candidate
