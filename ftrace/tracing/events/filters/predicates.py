"""The tests of a filter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from ftrace.core.glob import PatternKind

COMM_SIZE = 16
"""Size of a task's name, with its final 0, in bytes."""
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


class Predicate:
    """A test of a record."""


@dataclass(frozen=True)
class Constant(Predicate):
    """A test with the same result for every record."""

    value: bool


@dataclass(frozen=True)
class Number:
    """A number in the record: its offset, size and signedness."""

    offset: int
    size: int
    signed: bool

    def wrap(self, value: int) -> int:
        """`value` cut to its width."""
        low = value & ((1 << 8 * self.size) - 1)
        return low - (1 << 8 * self.size) if self.signed and low >> (8 * self.size - 1) else low


@dataclass(frozen=True)
class NumberTest(Predicate):
    """A comparison of a number of the record with a constant of its width, or `&`."""

    number: Number
    op: str
    value: int


@dataclass(frozen=True)
class CpuTest(Predicate):
    """A comparison of the current CPU with a constant."""

    op: str
    value: int


@dataclass(frozen=True)
class MaskTest(Predicate):
    """Whether a CPU number is in a mask. `number`: the record's field; None: the current CPU."""

    number: Number | None
    mask: int


@dataclass(frozen=True)
class BelowTest(Predicate):
    """Whether a number of the record, taken as unsigned, is below a limit."""

    number: Number
    limit: int


@dataclass(frozen=True)
class FunctionTest(Predicate):
    """Whether an address of the record lies inside a function."""

    number: Number
    start: int
    end: int
    negated: bool


@dataclass(frozen=True)
class StaticText:
    """Text of up to `size` bytes in the record; 0: up to the record's end, as in ftrace:print."""

    offset: int
    size: int


@dataclass(frozen=True)
class DynamicText:
    """Text described by the word at `offset`: the text's offset in the low half, its size with the final 0 in the high half.

    The size is 0 if the text could not be read when the record was made.
    """

    offset: int


@dataclass(frozen=True)
class CommText:
    """The name of the current task."""


Text = StaticText | DynamicText | CommText


@dataclass(frozen=True)
class TextTest(Predicate):
    """A comparison of text with a pattern. Text that could not be read matches nothing."""

    text: Text
    kind: PatternKind
    search: bytes
    negated: bool
