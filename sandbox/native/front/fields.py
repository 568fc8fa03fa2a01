"""The fields of a struct that a function reads and writes through one of its parameters, as far as its source shows."""

from __future__ import annotations

from typing import Any

from sandbox.native.function import NativeFunction
from sandbox.native.handler import Fields
from sandbox.native.tree import (
    Assign,
    Call,
    Dereference,
    Expression,
    FieldPlace,
    Load,
    LocalPlace,
    TypedFunction,
    Update,
    nodes,
)
from sandbox.native.types import Function


def fields_used(function: TypedFunction, parameter: str) -> Fields | None:
    """The fields that are used by name, `parameter.field` and `parameter.field = value`, here or in called functions.

    A function called through a `fn_preserve_most` uses no field that its caller does not use. None if there are other uses:
    the pointer is stored, compared, indexed, changed or given to other code, or the address of a field is taken.
    """
    uses = _Uses()
    return Fields(frozenset(uses.read), frozenset(uses.written)) if uses.are_all(function, parameter) else None


class _Uses:
    """The accesses through one pointer, in all the functions that have it."""

    def __init__(self) -> None:
        self.read = set[str]()
        self.written = set[str]()
        self._seen = set[tuple[int, str]]()

    def are_all(self, function: TypedFunction, parameter: str) -> bool:
        """Note what `function` does with its parameter; False if that is not all known."""
        if (id(function), parameter) in self._seen:
            return True
        self._seen.add((id(function), parameter))
        mentions = [place for place in nodes(function.body, LocalPlace) if place.name == parameter]
        return self._named(function, parameter) + self._passed_on(function, parameter) == len(mentions)

    def _named(self, function: TypedFunction, parameter: str) -> int:
        """How often a field is read or written."""
        count = 0
        for node in nodes(function.body, (Load, Assign, Update)):
            field = _field_of(node.place, parameter)
            if field is not None:
                count += 1
                self.read |= set() if isinstance(node, Assign) else {field}
                self.written |= set() if isinstance(node, Load) else {field}
        return count

    def _passed_on(self, function: TypedFunction, parameter: str) -> int:
        """How often the pointer is passed on to a function whose uses are known."""
        count = 0
        for call in nodes(function.body, Call):
            for position, argument in enumerate(call.arguments):
                if not _is_pointer(argument, parameter):
                    continue
                if isinstance(call.target, NativeFunction):
                    callee = call.target.typed
                    count += self.are_all(callee, callee.parameters[position])
                elif isinstance(call.target, Expression):
                    count += _is_own_code(call.target)
        return count


def _is_pointer(value: Expression, parameter: str) -> bool:
    return isinstance(value, Load) and isinstance(value.place, LocalPlace) and value.place.name == parameter


def _is_own_code(target: Expression) -> bool:
    """Whether it calls only functions that were made for this caller."""
    return isinstance(target.type, Function) and target.type.cc == "preserve_most"


def _field_of(place: Any, parameter: str) -> str | None:
    """The field, if `place` is one of what the parameter points to."""
    if isinstance(place, FieldPlace) and isinstance(place.base, Dereference):
        return place.field if _is_pointer(place.base.pointer, parameter) else None
    return None
