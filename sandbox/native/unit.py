"""Units: the functions that are compiled together, gathered from what the given ones reach."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from .debuginfo import DebugInfo
from .declarations import Extern, GlobalVariable
from .errors import NativeError, error_at
from .function import NativeFunction, located
from .lowering import definition
from .module import GENERAL_REGISTERS_ONLY, ModuleText
from .structs import Struct
from .tree import Call, FunctionAddress, GlobalPlace


class Unit:
    """Functions that become one LLVM module.

    *functions* are its entry points: visible under their own names. What they reach comes along and stays internal.
    *assembly* is text for LLVM's assembler in the same module. *features*: `no_sse` (nothing but general registers).
    *bounded* is False for a unit whose loops are trusted to end.
    *red_zone* allows code to use the 128 bytes under the stack pointer. *functions* may be extended until `ir()`.
    """

    def __init__(
        self,
        name: str,
        functions: Sequence[NativeFunction] = (),
        *,
        features: str = "no_sse",
        bounded: bool = True,
        assembly: str = "",
        red_zone: bool = True,
    ) -> None:
        if features != "no_sse":
            raise ValueError(f"features is 'no_sse', not {features!r}: native code touches general registers only")
        self.name = name
        self.functions = list(functions)
        self.assembly = assembly
        self.bounded = bounded
        self.red_zone = red_zone

    def add(self, *functions: NativeFunction) -> None:
        """Adds entry points."""
        self.functions += functions

    def reachable(self) -> list[NativeFunction]:
        """The unit's functions, callees before callers.

        Raises NativeError for a recursive call and, in a bounded unit, for a loop without a visible bound.
        """
        functions = list(_order(self.functions))
        for function in functions if self.bounded else ():
            function.check_bounds()
        return functions

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
        module = ModuleText(DebugInfo(self.name, first), symbols)
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


def callees(function: NativeFunction) -> Iterator[tuple[NativeFunction, Any]]:
    """The native functions that *function* calls or takes the address of, with the node that does it."""
    for node in nodes(function.typed.body, (Call, FunctionAddress)):
        if isinstance(node.target, NativeFunction):
            yield node.target, node


def nodes(tree: Any, kind: Any) -> Iterator[Any]:
    """Every node of *kind* in a typed tree, outer ones first."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from nodes(item, kind)
    elif is_dataclass(tree) and type(tree).__module__ == Call.__module__:
        if isinstance(tree, kind):
            yield tree
        for field in fields(tree):
            yield from nodes(getattr(tree, field.name), kind)


def _order(functions: Sequence[NativeFunction]) -> Iterator[NativeFunction]:
    done: set[NativeFunction] = set()
    for function in functions:
        yield from _visit(function, done, [])


def _visit(function: NativeFunction, done: set[NativeFunction], path: list[NativeFunction]) -> Iterator[NativeFunction]:
    if function in done:
        return
    path.append(function)
    for callee, node in callees(function):
        if callee in path and isinstance(node, Call):
            raise _recursion(function, node, [*path[path.index(callee) :], callee])
        if callee not in path:
            yield from _visit(callee, done, path)
    path.pop()
    done.add(function)
    yield function


def _recursion(function: NativeFunction, node: Any, cycle: list[NativeFunction]) -> NativeError:
    chain = " -> ".join(each.name for each in cycle)
    return error_at(function.origin, located(node.at), f"recursion ({chain}): the stack of a handler is bounded")
