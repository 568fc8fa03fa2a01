"""Compile values of histograms to the operations that hits carry out (see operations)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ftrace.hit.events import operations as op
from ftrace.tracing.events.filters.compiled import rseq_offset
from ftrace.tracing.events.filters.predicates import DynamicText, StaticText
from ftrace.tracing.events.hist.values import (
    TEXT_SIZE,
    Binary,
    Bucket,
    Comm,
    Constant,
    Cpu,
    FieldValue,
    Log2,
    Negative,
    Quotient,
    Reference,
    Stack,
    StackValue,
    TextValue,
    Timestamp,
    Value,
    is_rounded_up,
)
from ftrace.tracing.events.triggers.interfaces import TraceInstance

NUMBERS: Mapping[tuple[int, bool], int] = {
    (1, False): op.U8, (1, True): op.I8, (2, False): op.U16, (2, True): op.I16, (4, False): op.U32, (4, True): op.I32,
    (8, False): op.WORD, (8, True): op.WORD,
}  # fmt: skip
"""The kind of number, by size in bytes and signedness."""
_OPERATORS = {"+": op.ADD, "-": op.SUBTRACT, "*": op.MULTIPLY, "/": op.DIVIDE}


class Step(NamedTuple):
    """An operation."""

    code: int
    operand: int = 0
    extent: int = 0


@dataclass(frozen=True)
class OwnVariable:
    """A variable of the histogram itself, as its actions read it. `kind`: of its values."""

    index: int
    kind: int


def kind_of(value: Value | OwnVariable) -> int:
    """Whether a value is a number, a text or a stack: NUMBER_KIND, TEXT_KIND or STACK_KIND."""
    if isinstance(value, OwnVariable):
        return value.kind
    if isinstance(value, Reference):
        return value.key.kind
    if isinstance(value, TextValue | Comm):
        return op.TEXT_KIND
    return op.STACK_KIND if isinstance(value, Stack | StackValue) else op.NUMBER_KIND


def made_program(
    value: Value | OwnVariable, variables: Mapping[Any, int] | None = None, as_number: bool = False
) -> Any:
    """The Program of a value. `variables`: the index of each variable; `as_number`: texts and stacks count as 0."""
    compiler = _Compiler(variables or {})
    steps = list(compiler.number(value) if as_number else compiler.steps(value))
    held = (op.Operation.ctypes * len(steps))(*(op.Operation.ctypes(*step) for step in steps))
    kind = op.NUMBER_KIND if as_number else kind_of(value)
    made = op.Program.ctypes(ctypes.addressof(held), len(steps), kind)
    made.held = held
    return made


def made_source(instance: TraceInstance) -> Any:
    """The Source of an instance's histograms."""
    capture = instance.capture_stack
    made = op.Source.ctypes(instance.ring_buffer, rseq_offset(), capture.address, capture.argument)
    made.held = capture
    return made


class _Compiler:
    """Compiles the values of one histogram."""

    def __init__(self, variables: Mapping[Any, int]) -> None:
        self._variables = variables

    def number(self, value: Value | OwnVariable) -> Iterable[Step]:
        """The steps of an operand."""
        return self.steps(value) if kind_of(value) == op.NUMBER_KIND else (Step(op.CONSTANT),)

    def steps(self, value: Value | OwnVariable) -> Iterator[Step]:
        """The steps of a value, in postfix order."""
        match value:
            case Log2(operand):
                yield from self.number(operand)
                yield Step(op.LOG2)
            case Bucket(operand, width):
                yield from self.number(operand)
                yield Step(op.BUCKET, width)
            case Negative(operand):
                yield from self.number(operand)
                yield Step(op.NEGATIVE)
            case Quotient(dividend, divisor):
                yield from self.number(dividend)
                yield from _divided_by(divisor)
            case Binary(operator, left, right):
                yield from self.number(left)
                yield from self.number(right)
                yield Step(_OPERATORS[operator])
            case _:
                yield self._operand(value)

    def _operand(self, value: Value | OwnVariable) -> Step:
        match value:
            case OwnVariable(index, _):
                return Step(op.OWN, index)
            case Reference(key):
                return Step(op.VARIABLE, self._variables[key])
            case FieldValue(where):
                return Step(NUMBERS[where.size, where.signed], where.offset)
            case TextValue(StaticText(offset, size)):
                return Step(op.TEXT, offset, min(size, -(-size // 8) * 8 - 1))
            case TextValue(DynamicText(offset)):
                return Step(op.DYNAMIC_TEXT, offset, TEXT_SIZE - 1)
            case StackValue(offset):
                return Step(op.RECORD_STACK, offset)
            case Constant(number):
                return Step(op.CONSTANT, number)
            case Timestamp(divisor):
                return Step(op.TIMESTAMP, divisor)
        return Step(_PLAIN[type(value)])


_PLAIN: Mapping[type, int] = {Cpu: op.CPU, Comm: op.COMM, Stack: op.STACK}


def _divided_by(divisor: int) -> Iterator[Step]:
    if is_rounded_up(divisor):
        yield Step(op.QUOTIENT, divisor)
    else:
        yield Step(op.CONSTANT, divisor)
        yield Step(op.DIVIDE)
