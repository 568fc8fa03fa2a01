"""Bounded work: how often the loops of a function run at most, from what can be seen in it."""

from __future__ import annotations

from collections.abc import Sequence

from .flow import FlowError
from .tree import Compare, Conditional, Constant, Expression, ForRange, If, Statement, While
from .types import Int

MAX_ITERATIONS = 65536


def check(body: Sequence[Statement]) -> None:
    """Raises FlowError at the first loop of *body* that may run more than MAX_ITERATIONS times."""
    for statement in body:
        if isinstance(statement, While):
            raise FlowError(
                statement.at,
                "a while loop has no visible bound: write `for i in range(n)`, or @native(bounded=False)",
            )
        if isinstance(statement, ForRange):
            _check_for(statement)
        if isinstance(statement, If):
            check(statement.then)
            check(statement.otherwise)


def _check_for(loop: ForRange) -> None:
    if most_iterations(loop) > MAX_ITERATIONS:
        raise FlowError(
            loop.at,
            f"this loop may run more than {MAX_ITERATIONS} times: give a constant or min(n, constant) as bound, "
            "or write @native(bounded=False)",
        )
    check(loop.body)


def most_iterations(loop: ForRange) -> int:
    """An upper limit of the iterations of *loop*."""
    start, stop = limits(loop.start), limits(loop.stop)
    distance = stop[1] - start[0] if loop.step > 0 else start[1] - stop[0]
    return max(0, -(-distance // abs(loop.step)))


def limits(value: Expression) -> tuple[int, int]:
    """The least and the greatest value that the integer expression *value* can have, as far as it shows."""
    assert isinstance(value.type, Int)
    if isinstance(value, Constant):
        return value.value, value.value
    if isinstance(value, Conditional):
        return _conditional_limits(value)
    return value.type.minimum, value.type.maximum


def _conditional_limits(value: Conditional) -> tuple[int, int]:
    a, b = limits(value.then), limits(value.otherwise)
    test = value.condition
    if isinstance(test, Compare) and (test.left, test.right) == (value.then, value.otherwise):
        if test.operator == "<=":
            return min(a[0], b[0]), min(a[1], b[1])
        return max(a[0], b[0]), max(a[1], b[1])
    return min(a[0], b[0]), max(a[1], b[1])
