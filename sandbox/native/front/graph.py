"""The call graph: callees before callers, no recursion, a bounded stack and bounded work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

from sandbox.native.front import bounds
from sandbox.native.front.errors import LocatedError, NativeError, Origin, error_at
from sandbox.native.tree import Call, Cast, FunctionAddress, TypedFunction, nodes
from sandbox.native.types import Int

MAX_STACK = 16384
"""Bytes of variables on the deepest chain of calls."""


class Checkable(Protocol):
    """What the graph needs of a native function."""

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
            work[function] = bounds.work(function.typed, work) if bounded and function.bounded else 1
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
    """What *function* calls or takes the address of, with the node that does it."""
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
            message = f"{node.target.name} has the convention {node.target.cc}, and function pointers have C's"
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
    return error_at(function.origin, node.at, f"recursion ({chain}): write a loop, the stack of a handler is bounded")


def _stack(function: Checkable, known: dict[Any, int]) -> int:
    deepest = max((known.get(callee, 0) for callee, _ in callees(function.typed)), default=0)
    total = bounds.frame(function.typed) + deepest
    if total > MAX_STACK:
        message = f"{function.name} and what it calls need {total} bytes of stack, more than {MAX_STACK}"
        raise LocatedError(function.typed.at, message)
    return total
