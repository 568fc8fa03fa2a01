"""The tests of a filter, and their evaluation on the bytes of a record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from ftrace.filters.glob import Match, Pattern

COMM_SIZE = 16
"""Size of a task's name, with its final 0, in bytes."""
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}


@dataclass(frozen=True)
class Context:
    """The state that tests use besides the record: the task that produced it, and its CPU."""

    comm: bytes = b""
    cpu: int = 0


class Predicate:
    """A test of a record."""

    @abstractmethod
    def holds(self, record: bytes, context: Context) -> bool:
        """Whether `record`, with its fixed part complete, passes."""


@dataclass(frozen=True)
class Constant(Predicate):
    """A test with the same result for every record."""

    value: bool

    def holds(self, record: bytes, context: Context) -> bool:
        return self.value


@dataclass(frozen=True)
class Number:
    """A number in the record: its offset, size and signedness."""

    offset: int
    size: int
    signed: bool

    def read(self, record: bytes) -> int:
        """Its value."""
        return int.from_bytes(record[self.offset : self.offset + self.size], "little", signed=self.signed)

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

    def holds(self, record: bytes, context: Context) -> bool:
        found = self.number.read(record)
        return bool(found & self.value) if self.op == "&" else COMPARISONS[self.op](found, self.value)


@dataclass(frozen=True)
class CpuTest(Predicate):
    """A comparison of the current CPU with a constant."""

    op: str
    value: int

    def holds(self, record: bytes, context: Context) -> bool:
        return COMPARISONS[self.op](context.cpu, self.value)


@dataclass(frozen=True)
class MaskTest(Predicate):
    """Whether a CPU number is in a mask. `number`: the record's field; None: the current CPU."""

    number: Number | None
    mask: int

    def holds(self, record: bytes, context: Context) -> bool:
        cpu = context.cpu if self.number is None else self.number.read(record)
        return cpu >= 0 and bool(self.mask >> min(cpu, self.mask.bit_length()) & 1)


@dataclass(frozen=True)
class BelowTest(Predicate):
    """Whether a number of the record, taken as unsigned, is below a limit."""

    number: Number
    limit: int

    def holds(self, record: bytes, context: Context) -> bool:
        return 0 <= self.number.read(record) < self.limit


@dataclass(frozen=True)
class FunctionTest(Predicate):
    """Whether an address of the record lies inside a function."""

    number: Number
    start: int
    end: int
    negated: bool

    def holds(self, record: bytes, context: Context) -> bool:
        return (self.start <= self.number.read(record) < self.end) != self.negated


@dataclass(frozen=True)
class StaticText:
    """Text of up to `size` bytes in the record; 0: up to the record's end, as in ftrace:print."""

    offset: int
    size: int

    def read(self, record: bytes, context: Context) -> bytes | None:
        """The text, to its first 0."""
        end = self.offset + self.size if self.size else len(record)
        whole = record[self.offset : end]
        return whole.partition(b"\0")[0] if whole else None


@dataclass(frozen=True)
class DynamicText:
    """Text described by the word at `offset`: the text's offset in the low half, its size with the final 0 in the high half."""

    offset: int

    def read(self, record: bytes, context: Context) -> bytes | None:
        """The text; None if it could not be read when the record was made."""
        start, size = (int.from_bytes(record[at : at + 2], "little") for at in (self.offset, self.offset + 2))
        whole = record[start : start + size]
        return whole.partition(b"\0")[0] if whole else None


@dataclass(frozen=True)
class CommText:
    """The name of the current task."""

    def read(self, record: bytes, context: Context) -> bytes | None:
        """The name."""
        return context.comm[: COMM_SIZE - 1].partition(b"\0")[0]


Text = StaticText | DynamicText | CommText


@dataclass(frozen=True)
class TextTest(Predicate):
    """A comparison of text with a pattern. Text that could not be read matches nothing."""

    text: Text
    kind: Match
    search: bytes
    negated: bool

    def holds(self, record: bytes, context: Context) -> bool:
        found = self.text.read(record, context)
        matches = found is not None and self._pattern().matches(found.decode("latin-1"))
        return matches != self.negated

    def _pattern(self) -> Pattern:
        search = self.search.decode("latin-1")
        # A Pattern without text matches nothing, but `== ""` is a comparison with the empty text.
        return Pattern(search or "*", self.kind, search, negated=False)
