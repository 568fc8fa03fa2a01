"""Plans what to record of the calls of functions (ftrace.hit.call_values): arguments, results, and what pointers lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fprobe.prototypes.described import Argument, Described
from fprobe.prototypes.meanings import TEXT_LIMIT
from ftrace.hit.call_records import HEAD_WORDS
from ftrace.hit.call_values import (
    ARGUMENT_WORDS,
    BYTES,
    IN_REGISTER,
    IN_RESULT,
    ON_STACK,
    RESULT_WORDS,
    TEXT,
    VECTOR_WORDS,
    Followed,
    FunctionPlan,
)
from ftrace.hit.hashing import FunctionTable
from sandbox.abi.convention import ARGUMENTS, RESULTS, STACK

_NO_LENGTH = 255
_ANY_STACK = 8
"""Words of the stack that a function may take of which it is not known."""


def function_plans(known: Mapping[int, Described], *, strings: bool) -> FunctionTable:
    """The plans of functions, by their entry addresses. `strings`: what pointers lead to is recorded, too."""
    plans = FunctionTable(FunctionPlan.ctypes, len(known))
    for ip, each in known.items():
        _fill(plans.add(ip), each, strings)
    return plans


def plan_anything(plan: Any, *, strings: bool) -> None:
    """Fill in the plan of functions of which it is not known what they take: each register may be a pointer to a text."""
    registers = [(IN_REGISTER, number) for number in range(ARGUMENT_WORDS)] if strings else []
    plan.entry.vectors, plan.entry.stack = 1, _ANY_STACK
    _follow_texts(plan.entry, registers)
    plan.entry.length = _length(plan.entry, ARGUMENT_WORDS)
    plan.leave.vectors = 1
    _follow_texts(plan.leave, [(IN_RESULT, 0)] if strings else [])
    plan.leave.length = _length(plan.leave, RESULT_WORDS)


def _follow_texts(native: Any, sources: list[tuple[int, int]]) -> None:
    for source, number in sources:
        text = {"kind": TEXT, "length_source": _NO_LENGTH, "most": TEXT_LIMIT + 1}
        _follow(native, Followed.ctypes(source=source, number=number, **text))


def _fill(plan: Any, known: Described, strings: bool) -> None:
    for native, at_return in ((plan.entry, False), (plan.leave, True)):
        native.vectors = known.in_vectors(at_return=at_return)
        native.stack = 0 if at_return else known.stack_words
        for argument in known.followed(at_return=at_return):
            source = _source(argument)
            if source is not None and (strings or argument.is_indirect):
                _follow(native, _followed(argument, source, known))
        native.length = _length(native, RESULT_WORDS if at_return else ARGUMENT_WORDS)


def _follow(native: Any, followed: Any) -> None:
    native.follow[native.count] = followed
    native.count += 1


def _length(native: Any, general: int) -> int:
    """Bytes of a record, at most. `general`: words of general registers."""
    targets = sum(2 + (native.follow[number].most + 7 >> 3) for number in range(native.count))
    return 8 * int(HEAD_WORDS + general + native.vectors * VECTOR_WORDS + native.stack + targets)


def _source(argument: Argument) -> tuple[int, int] | None:
    """Where a pointer or a length is; None if a record of a return does not have it."""
    assert argument.place is not None
    offset = argument.place.pieces[0][1]
    if offset == RESULTS[0]:
        return IN_RESULT, 0
    if offset in ARGUMENTS:
        return IN_REGISTER, ARGUMENTS.index(offset)
    return (ON_STACK, (offset - STACK) // 8) if offset >= STACK else None


def _followed(argument: Argument, source: tuple[int, int], known: Described) -> Any:
    target = argument.target
    assert target is not None
    length, result = None, known.result.place if known.result else None
    if target.length == -1:
        length = IN_RESULT, 0
    elif target.length is not None and target.length < len(known.arguments):
        length = _source(known.arguments[target.length])
    return Followed.ctypes(
        source=source[0],
        number=source[1],
        kind=TEXT if target.is_text else BYTES,
        length_source=_NO_LENGTH if length is None else length[0],
        length_number=0 if length is None else length[1],
        through=target.through,
        succeeds=result.size if target.at_return and argument.meaning and result is not None else 0,
        most=target.most + target.is_text,
    )
