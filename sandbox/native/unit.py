"""Units: the functions that are compiled together, gathered from what the given ones reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import graph
from .declarations import Extern, GlobalVariable
from .function import NativeFunction
from .lowering import definition
from .metadata import Metadata
from .module import GENERAL_REGISTERS_ONLY, ModuleText
from .structs import Struct
from .tree import GlobalPlace, nodes


class Unit:
    """Functions that become one LLVM module.

    *functions* are its entry points: visible under their own names. What they reach comes along and stays internal.
    *assembly* is text for LLVM's assembler in the same module. *features*: `no_sse` (nothing but general registers).
    *bounded* is False for a unit whose loops are trusted to end.
    *checked* compares every index into an array of known length with that length; one outside becomes 0.
    *red_zone* allows code to use the 128 bytes under the stack pointer. *functions* may be extended until `ir()`.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[NativeFunction] = (),
        *,
        features: str = "no_sse",
        bounded: bool = True,
        checked: bool = False,
        assembly: str = "",
        red_zone: bool = True,
    ) -> None:
        if features != "no_sse":
            raise ValueError(f"features is 'no_sse', not {features!r}: native code touches general registers only")
        self.name = name
        self.functions: list[NativeFunction] = []
        self.add(*functions)
        self.assembly = assembly
        self.bounded = bounded
        self.checked = checked
        self.red_zone = red_zone

    def add(self, *functions: NativeFunction) -> None:
        """Adds entry points. Raises TypeError for what is not a native function."""
        for function in functions:
            if not isinstance(function, NativeFunction):
                raise TypeError(f"a unit is made of @native functions, not of {function!r}")
            self.functions.append(function)

    def reachable(self) -> list[NativeFunction]:
        """The unit's functions, callees before callers.

        Raises NativeError for a recursive call and, in a bounded unit, for a loop without a visible bound.
        """
        return graph.check(self.functions, self.bounded)

    def symbols(self) -> dict[Any, str]:
        """Function or variable -> its symbol. Raises ValueError when two entry points share a name."""
        return _Names(self.functions).assign(self.reachable())

    def ir(self) -> str:
        """The unit as LLVM IR text, with debug information.

        Raises NativeError for the first thing that is not in the language, ValueError for clashing names.
        """
        functions = self.reachable()
        symbols = self.symbols()
        first = functions[0].filename if functions else self.name
        module = ModuleText(Metadata(self.name, first), symbols, self.checked)
        texts = [self._definition(module, function, symbols[function]) for function in functions]
        return module.text(self.name, self.assembly, texts)

    def struct_layout(self, struct: Struct) -> tuple[dict[str, int], int]:
        """Field -> offset, and the size, in bytes."""
        return dict(struct.offsets), struct.size

    def _definition(self, module: ModuleText, function: NativeFunction, symbol: str) -> str:
        visible = function in self.functions or function.options.export
        linkage = "dso_local " if visible else "internal "
        options = function.options
        return definition(module, function.typed, symbol, self._attributes(function), options.cc, linkage)

    def _attributes(self, function: NativeFunction) -> str:
        options = function.options
        words = ["nounwind", '"no-builtins"', f'"target-features"="{GENERAL_REGISTERS_ONLY}"']
        words += ["alwaysinline"] * options.inline + ["noinline"] * options.noinline
        words += [] if self.red_zone else ["noredzone"]
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
            for place in nodes(function.typed.body, GlobalPlace):
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
