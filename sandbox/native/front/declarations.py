"""Declarations of a module other than functions: typed constants, external symbols, global variables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from sandbox.native.front.annotations import Namespace, resolve
from sandbox.native.types import Array, Bool, Function, Int, Type, as_type

CONVENTIONS = ("c", "preserve_most", "preserve_all")
"""Calling conventions of functions."""


class Const:
    """A named integer of a fixed type; usable as an int outside native functions through `.value`."""

    def __init__(self, type_: Int, value: int) -> None:
        self.type = type_
        self.value = value

    def __repr__(self) -> str:
        return f"const({self.type}, {self.value})"

    def __index__(self) -> int:
        return self.value


class Declared:
    """A symbol with a type that is resolved where it is first used."""

    def __init__(self, annotation: Any, namespace: Namespace, symbol: str) -> None:
        self.annotation = annotation
        self.namespace = namespace
        self.symbol = symbol

    @property
    def type(self) -> Type:
        """The declared type. Raises TypeError or NameError when it names something unknown."""
        return resolve(self.annotation, self.namespace)


class Extern(Declared):
    """A symbol that something else defines: a C function, module assembly, another unit.

    `cc`: the calling convention of a function.
    """

    def __init__(self, annotation: Any, namespace: Namespace, symbol: str, cc: str = "c") -> None:
        super().__init__(annotation, namespace, symbol)
        self.cc = cc


class GlobalVariable(Declared):
    """A variable of the unit that uses it. `symbol` is empty when the unit names it after its variable."""

    def __init__(
        self, annotation: Any, namespace: Namespace, initial: int | tuple[int, ...] = 0, symbol: str = ""
    ) -> None:
        super().__init__(annotation, namespace, symbol)
        self.initial = initial


class Callee:
    """A function of the language as its callers see it: the front end gives it a name and a signature."""

    @property
    def name(self) -> str:
        """Its name in the source."""
        raise NotImplementedError

    @property
    def signature(self) -> Function:
        """Its type."""
        raise NotImplementedError

    @property
    def cc(self) -> str:
        """Its calling convention."""
        raise NotImplementedError


class NullObject:
    """The value of the name `null`: the pointer to nothing."""

    def __repr__(self) -> str:
        return "null"


class Zeroed:
    """The value of the word `zeroed`, with which a local array or struct is initialised."""

    def __repr__(self) -> str:
        return "zeroed"


def const(type_: Any, value: int) -> Any:
    """A typed constant. Raises TypeError for a non-integer and OverflowError when it does not fit."""
    resolved = as_type(type_)
    if not isinstance(resolved, Int) or isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"const takes an integer type and an int, not {type_} and {value!r}")
    _check_range(resolved, value)
    return Const(resolved, value)


def extern(symbol: str, type_: Any, *, cc: str = "c") -> Any:
    """A function (`fn[...]`) or a variable (any other type) that is defined elsewhere as *symbol*.

    The address comes from the process (llvmlite's `add_symbol`, a loaded library) or from assembly in the
    same unit. *cc* is the calling convention of a function. Raises TypeError for a type that does not exist, ValueError
    for an unknown convention.
    """
    if cc not in CONVENTIONS:
        raise ValueError(f"cc must be one of {', '.join(CONVENTIONS)}, not {cc!r}")
    return Extern(as_type(type_), _caller(), symbol, cc)


def global_var(type_: Any, initial: int | bytes | list[int] = 0, *, name: str = "") -> Any:
    """A variable that lives as long as the compiled unit, zero unless *initial* says otherwise.

    *initial* is an int for an integer or bool, and bytes or a list of ints for an array of integers.
    *name* is its symbol; without it the unit uses the name of the Python variable.
    Raises TypeError when *initial* is of the wrong kind and OverflowError when it does not fit.
    """
    values = tuple(initial) if isinstance(initial, Iterable) else initial
    declared = as_type(type_)
    if values != 0:
        _check_initial(declared, values)
    return GlobalVariable(declared, _caller(), values, name)


def _check_initial(type_: Type, initial: int | tuple[int, ...]) -> None:
    element = type_.element if isinstance(type_, Array) else type_
    values = initial if isinstance(initial, tuple) else (initial,)
    fits = isinstance(initial, tuple) == isinstance(type_, Array) and all(isinstance(value, int) for value in values)
    if not isinstance(element, (Int, Bool)):
        raise TypeError(f"initial is {initial!r}; {type_} can only start as zero: leave initial out")
    if not fits:
        wanted = "bytes or a list of ints" if isinstance(type_, Array) else "an int"
        raise TypeError(f"initial is {initial!r}; {type_} takes {wanted}")
    if isinstance(type_, Array) and len(values) > type_.count:
        raise OverflowError(f"initial has {len(values)} values; {type_} holds {type_.count}")
    for value in values:
        _check_range(element, value)


def _check_range(type_: Int | Bool, value: int) -> None:
    least, most = (type_.minimum, type_.maximum) if isinstance(type_, Int) else (0, 1)
    if not least <= value <= most:
        raise OverflowError(f"{value} does not fit {type_} ({least} to {most})")


def _caller() -> Namespace:
    frame = sys._getframe(2)
    return Namespace(frame.f_globals, frame.f_locals)


null: Any = NullObject()
zeroed: Any = Zeroed()
