"""Checks of every path through a function: locals are assigned before they are read, a value is returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandbox.native.front.errors import LocatedError
from sandbox.native.tree import (
    Assign,
    Break,
    Constant,
    Continue,
    Evaluate,
    ForRange,
    If,
    IntrinsicCall,
    LocalPlace,
    Return,
    Statement,
    TypedFunction,
    Update,
    While,
    Zero,
    nodes,
)
from sandbox.native.types import void

Names = frozenset[str] | None
"""The locals assigned at a point; None where control cannot be."""


def check_flow(function: TypedFunction, implicit: int | None = None) -> None:
    """Raises LocatedError where a local may be read unassigned, at unreachable code, and when the end of a function with a
    result can be reached; with *implicit*, that is returned there."""
    end = Flow().block(function.body, frozenset(function.parameters))
    if end is None or function.signature.result == void:
        return
    if implicit is None:
        raise LocatedError(
            function.at,
            f"{function.name} may end without returning {function.signature.result}: end every path with `return`",
        )
    value = Constant(function.at, function.signature.result, implicit)
    function.body = [*function.body, Return(function.at, value)]


class Flow:
    """Follows the assigned locals through statements; raises LocatedError at a read of an unassigned one."""

    def __init__(self) -> None:
        self._breaks: list[list[Names]] = []

    def block(self, body: Sequence[Statement], assigned: Names) -> Names:
        """The locals that are assigned after *body*; None when its end cannot be reached."""
        for statement in body:
            if assigned is None:
                raise LocatedError(statement.at, "this is never reached: remove it")
            assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, statement: Statement, assigned: frozenset[str]) -> Names:
        match statement:
            case Assign(place=place, value=value):
                self._read(value, assigned)
                return self._write(place, assigned)
            case Update(place=place, value=value):
                self._read(place, assigned)
                self._read(value, assigned)
                return assigned
            case Zero(place=place):
                return assigned | {place.name}
            case If():
                return self._if(statement, assigned)
            case While():
                return self._while(statement, assigned)
            case ForRange():
                return self._for(statement, assigned)
            case Break():
                self._breaks[-1].append(assigned)
                return None
            case Continue():
                return None
        self._read(statement, assigned)
        if isinstance(statement, Return) or is_trap(statement):
            return None
        return assigned

    def _write(self, place: Any, assigned: frozenset[str]) -> frozenset[str]:
        if isinstance(place, LocalPlace):
            return assigned | {place.name}
        self._read(place, assigned)
        return assigned

    def _if(self, statement: If, assigned: frozenset[str]) -> Names:
        self._read(statement.condition, assigned)
        then = self.block(statement.then, assigned)
        return meet([then, self.block(statement.otherwise, assigned)])

    def _while(self, statement: While, assigned: frozenset[str]) -> Names:
        self._read(statement.condition, assigned)
        breaks = self._loop(statement.body, assigned)
        return meet(breaks if is_true(statement.condition) else [assigned, *breaks])

    def _for(self, statement: ForRange, assigned: frozenset[str]) -> Names:
        self._read(statement.start, assigned)
        self._read(statement.stop, assigned)
        inside = assigned | {statement.variable.name}
        breaks = self._loop(statement.body, inside)
        return meet([inside if always_runs(statement) else assigned, *breaks])

    def _loop(self, body: Sequence[Statement], assigned: frozenset[str]) -> list[Names]:
        self._breaks.append([])
        self.block(body, assigned)
        return self._breaks.pop()

    def _read(self, node: Any, assigned: frozenset[str]) -> None:
        for place in nodes(node, LocalPlace):
            if place.name not in assigned:
                raise LocatedError(
                    place.at, f"{place.name!r} may be read before a value is assigned to it: assign it on every path"
                )


def meet(paths: Sequence[Names]) -> Names:
    """The variables that are assigned on all of *paths*, where these join."""
    reached = [path for path in paths if path is not None]
    return frozenset.intersection(*reached) if reached else None


def is_true(condition: Any) -> bool:
    """Whether *condition* is the constant True."""
    return isinstance(condition, Constant) and condition.value == 1


def is_trap(statement: Statement) -> bool:
    """Whether *statement* is `trap()`, after which nothing runs."""
    return (
        isinstance(statement, Evaluate)
        and isinstance(statement.value, IntrinsicCall)
        and statement.value.name == "trap"
    )


def always_runs(loop: ForRange) -> bool:
    """Whether the body of *loop* runs at least once, by its constants."""
    if not isinstance(loop.start, Constant) or not isinstance(loop.stop, Constant):
        return False
    start, stop = loop.start.value, loop.stop.value
    return start < stop if loop.step > 0 else start > stop
