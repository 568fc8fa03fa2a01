"""The call graph: callees before callers, no recursion, a bounded stack and bounded work, as far as the source shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sandbox.native.front.errors import LocatedError, NativeError, Origin, error_at
from sandbox.native.tree import (
    Binary,
    Call,
    Cast,
    Constant,
    Expression,
    Extreme,
    ForRange,
    FunctionAddress,
    If,
    Statement,
    TypedFunction,
    While,
    nodes,
)
from sandbox.native.types import Int

MAX_STACK = 16384
"""Bytes of variables on the deepest chain of calls."""
MAX_ITERATIONS = 1 << 20
"""The most that a function's innermost statements may run in one call, by the visible bounds."""
MAX_FRAME = 4096
"""Bytes of local variables in one function."""
ADVICE = "write `for i in range(n)` with a constant or min(n, constant), or @native(bounded=False)"


class Checkable(Protocol):
    """The interface of a native function that the graph uses."""

    @property
    def name(self) -> str: ...
    @property
    def bounded(self) -> bool: ...
    @property
    def origin(self) -> Origin: ...
    @property
    def typed(self) -> TypedFunction: ...


F = TypeVar("F", bound=Checkable)


def check(functions: Sequence[F], bounded: bool = True) -> list[F]:
    """*functions* and all functions that they reach, callees before callers, fully checked.

    Raises NativeError for code that is not in the language, recursion, a stack that is too deep and, if *bounded*,
    loops without a visible bound.
    """
    ordered = order(functions)
    work: dict[Any, int] = {}
    stack: dict[Any, int] = {}
    for function in ordered:
        try:
            _check_addresses(function.typed)
            stack[function] = _stack(function, stack)
            work[function] = _most_work(function.typed, work) if bounded and function.bounded else 1
        except LocatedError as problem:
            raise error_at(function.origin, problem.at, str(problem)) from None
    return ordered


def order(functions: Sequence[F]) -> list[F]:
    """*functions* and all that they reach, callees before callers. Raises NativeError for a recursive call."""
    done: dict[F, None] = {}
    for function in functions:
        _visit(function, done, [])
    return list(done)


def callees(function: TypedFunction) -> Iterator[tuple[Any, Call | FunctionAddress]]:
    """The functions that *function* calls or takes the address of, each with the node."""
    for node in function.calls:
        if hasattr(node.target, "typed"):
            yield node.target, node


def _check_addresses(function: TypedFunction) -> None:
    """Function pointers call by C's convention; the address of another function may only be taken as a number."""
    taken: list[Any] = [node for node in function.calls if isinstance(node, FunctionAddress)]
    casts = nodes(function.body, Cast) if taken else ()
    numbers = {id(node.operand) for node in casts if isinstance(node.type, Int)}
    for node in taken:
        if node.target.cc != "c" and id(node) not in numbers:
            message = f"{node.target.name} has cc={node.target.cc!r}, but function pointers call by 'c': remove its cc"
            raise LocatedError(node.at, message)


def _visit(function: F, done: dict[F, None], path: list[F]) -> None:
    if function in done:
        return
    path.append(function)
    for callee, node in callees(function.typed):
        if callee not in path:
            _visit(callee, done, path)
        elif isinstance(node, Call):
            raise _recursion(function, node, [*path[path.index(callee) :], callee])
    path.pop()
    done[function] = None


def _recursion(function: Checkable, node: Call, cycle: Sequence[Checkable]) -> NativeError:
    chain = " -> ".join(each.name for each in cycle)
    return error_at(function.origin, node.at, f"recursion is not in the native language ({chain}): write a loop")


def _stack(function: Checkable, known: dict[Any, int]) -> int:
    deepest = max((known.get(callee, 0) for callee, _ in callees(function.typed)), default=0)
    total = _frame(function.typed) + deepest
    if total > MAX_STACK:
        message = (
            f"{function.name} and its callees need {total} bytes of stack; the maximum is {MAX_STACK}: use a global_var"
        )
        raise LocatedError(function.typed.at, message)
    return total


def _frame(function: TypedFunction) -> int:
    """The bytes that the variables of *function* may take on the stack. Raises LocatedError above MAX_FRAME."""
    total = sum(-(-type_.size // 8) * 8 for type_ in function.locals.values())
    if total > MAX_FRAME:
        message = f"the variables of {function.name} take {total} bytes; the maximum is {MAX_FRAME}: use a global_var"
        raise LocatedError(function.at, message)
    return total


def _most_work(function: TypedFunction, callees: Mapping[Any, int]) -> int:
    """An upper limit of the loop iterations in one call of *function*; *callees* has the limits of its callees.

    Raises LocatedError at a loop without a visible bound, and at the loop or call that exceeds the limit.
    """
    return _Work(callees).block(function.body)


class _Work:
    def __init__(self, callees: Mapping[Any, int]) -> None:
        self._callees = callees

    def block(self, body: Sequence[Statement]) -> int:
        return max(1, sum(map(self._statement, body)))

    def _statement(self, statement: Statement) -> int:
        if isinstance(statement, While):
            raise LocatedError(statement.at, f"a while loop has no visible bound: {ADVICE}")
        if isinstance(statement, If):
            return self._calls(statement.condition) + max(self.block(statement.then), self.block(statement.otherwise))
        if isinstance(statement, ForRange):
            return self._calls((statement.start, statement.stop)) + self._loop(statement)
        return self._calls(statement)

    def _loop(self, loop: ForRange) -> int:
        rounds = most_iterations(loop)
        total = rounds * self.block(loop.body)
        if total > MAX_ITERATIONS:
            times = f"{rounds} times" if total == rounds else f"{total} times with what is inside"
            raise LocatedError(loop.at, f"this loop may run {times}; the maximum is {MAX_ITERATIONS}: {ADVICE}")
        return total

    def _calls(self, tree: Any) -> int:
        return sum(self._callees.get(call.target, 0) for call in nodes(tree, Call))


def most_iterations(loop: ForRange) -> int:
    """An upper limit of the iterations of *loop*."""
    start, stop = limits(loop.start), limits(loop.stop)
    distance = stop[1] - start[0] if loop.step > 0 else start[1] - stop[0]
    return max(0, -(-distance // abs(loop.step)))


def limits(value: Expression) -> tuple[int, int]:
    """The least and the greatest value that the integer expression *value* can have, as far as it shows."""
    type_ = value.type
    assert isinstance(type_, Int)
    if isinstance(value, Constant):
        return value.value, value.value
    if isinstance(value, Extreme):
        choose = min if value.name == "min" else max
        a, b = limits(value.left), limits(value.right)
        return choose(a[0], b[0]), choose(a[1], b[1])
    if isinstance(value, Cast) and isinstance(value.operand.type, Int):
        inner = limits(value.operand)
        return inner if type_.holds(inner[0]) and type_.holds(inner[1]) else (type_.minimum, type_.maximum)
    if isinstance(value, Binary):
        return _binary_limits(value, type_)
    return type_.minimum, type_.maximum


def _binary_limits(value: Binary, type_: Int) -> tuple[int, int]:
    """`x & 63` and `x % 64` show their bound when it is a constant that is not negative."""
    if isinstance(value.right, Constant) and value.right.value > 0:
        if value.operator == "&":
            return 0, value.right.value
        if value.operator == "%":
            return 0, value.right.value - 1
    return type_.minimum, type_.maximum
