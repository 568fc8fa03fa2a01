"""Warnings about code that is accepted but probably not intended."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from sandbox.native.front.errors import At, NativeWarning
from sandbox.native.tree import (
    AddressOf,
    Assign,
    Binary,
    Cast,
    Compare,
    Constant,
    ElementPlace,
    Evaluate,
    Expression,
    FieldPlace,
    ForRange,
    IntrinsicCall,
    LocalPlace,
    Place,
    Return,
    TypedFunction,
    Update,
    Zero,
    nodes,
)
from sandbox.native.types import Int

_PURE = ("likely", "unlikely", "popcount", "leading_zeros", "trailing_zeros", "byteswap", "multiply_high")
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


def warn(function: TypedFunction) -> None:
    """Issues a NativeWarning for each finding, at its line of the source file."""
    for at, message in findings(function):
        warnings.warn_explicit(message, NativeWarning, function.filename, at.line)


def findings(function: TypedFunction) -> list[tuple[At, str]]:
    """Warnings about *function*: positions and messages, by position."""
    found = [
        *_unused(function),
        *_comparisons(function),
        *_shifts(function),
        *_late_widening(function),
        *_escaping_addresses(function),
        *_ignored_results(function),
        *_changed_loop_variables(function),
    ]
    return sorted(found, key=lambda each: (each[0].line, each[0].column))


Findings = Iterator[tuple[At, str]]


def _unused(function: TypedFunction) -> Findings:
    written = {id(place): place for place in _written(function)}
    read = {place.name for place in nodes(function.body, LocalPlace) if id(place) not in written}
    loops = {loop.variable.name for loop in nodes(function.body, ForRange)}
    seen: set[str] = {*function.parameters, *loops, *read}
    for place in written.values():
        if place.name not in seen and not place.name.startswith("_"):
            seen.add(place.name)
            yield place.at, f"{place.name} is assigned and never read"


def _written(function: TypedFunction) -> Iterator[LocalPlace]:
    for statement in nodes(function.body, (Assign, Zero, Update, ForRange)):
        place = statement.variable if isinstance(statement, ForRange) else statement.place
        if isinstance(place, LocalPlace):
            yield place


def _comparisons(function: TypedFunction) -> Findings:
    for node in nodes(function.body, Compare):
        always = _always(node.operator, node.left, node.right)
        if always is None:
            always = _always(MIRRORED[node.operator], node.right, node.left)
        if always is not None:
            yield node.at, f"this is always {always} for values of {node.left.type}"


def _always(operator: str, left: Expression, right: Expression) -> bool | None:
    if not isinstance(right, Constant) or not isinstance(right.type, Int) or isinstance(left, Constant):
        return None
    if (operator, right.value) in (("<", right.type.minimum), (">", right.type.maximum)):
        return False
    if (operator, right.value) in ((">=", right.type.minimum), ("<=", right.type.maximum)):
        return True
    return None


def _shifts(function: TypedFunction) -> Findings:
    for node in nodes(function.body, (Binary, Update)):
        type_, count = (node.type, node.right) if isinstance(node, Binary) else (node.place.type, node.value)
        count_value = count.value if isinstance(count, Constant) else 0
        everything = isinstance(type_, Int) and count_value >= type_.bits
        if node.operator in ("<<", ">>") and everything:
            yield node.at, f"a shift by {count_value} moves every bit out of {type_}"


def _late_widening(function: TypedFunction) -> Findings:
    for node in nodes(function.body, Cast):
        inner = node.operand
        grows = isinstance(inner, Binary) and inner.operator in ("*", "<<")
        if grows and isinstance(node.type, Int) and inner.type.size < node.type.size:
            yield node.at, f"this wraps in {inner.type} before it is widened: cast the operands"


def _escaping_addresses(function: TypedFunction) -> Findings:
    for statement in nodes(function.body, (Return, Assign)):
        leaves = isinstance(statement, Return) or not isinstance(statement.place, LocalPlace)
        value: Any = statement.value
        while isinstance(value, Cast):
            value = value.operand
        if leaves and isinstance(value, AddressOf) and isinstance(_root(value.place), LocalPlace):
            yield statement.at, "this is the address of a local variable, which is gone when the function returns"


def _root(place: Place) -> Place:
    while isinstance(place, (FieldPlace, ElementPlace)):
        place = place.base
    return place


def _ignored_results(function: TypedFunction) -> Findings:
    for node in nodes(function.body, Evaluate):
        if isinstance(node.value, IntrinsicCall) and node.value.name in ("atomic_cas", "load", *_PURE):
            yield node.at, f"the result of {node.value.name}() is not used"


def _changed_loop_variables(function: TypedFunction) -> Findings:
    for loop in nodes(function.body, ForRange):
        for statement in nodes(loop.body, (Assign, Update)):
            if isinstance(statement.place, LocalPlace) and statement.place.name == loop.variable.name:
                yield statement.at, f"assigning to {loop.variable.name} does not change the iterations of its loop"
