"""The values that histograms compute from a hit: fields, constants, variables of other hits, and arithmetic."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ftrace.events.filters.predicates import Context, DynamicText, Number, StaticText

MASK = (1 << 64) - 1
STACK_DEPTH = 16
"""The maximum number of frames in a stack trace that is a key."""
TEXT_SIZE = 256
"""Size of a text that is a key, with its final 0, in bytes."""


@dataclass(frozen=True)
class Hit:
    """A hit of an event, as histograms use it. `timestamp`: in the units of the trace clock."""

    record: bytes
    timestamp: int = 0
    context: Context = field(default_factory=Context)
    stack: tuple[int, ...] = ()
    variables: Mapping[object, int | bytes] = field(default_factory=dict)
    """The values of variables in the entry with the same key, by reference."""

    @property
    def thread(self) -> int:
        """The thread's id: common_pid."""
        return int.from_bytes(self.record[4:8], "little")


class Value:
    """A value that is computed from a hit. Numbers are unsigned 64-bit words."""

    @abstractmethod
    def of(self, hit: Hit) -> int | bytes:
        """The value for a hit."""

    def number(self, hit: Hit) -> int:
        """The value for a hit, as a number."""
        value = self.of(hit)
        return value if isinstance(value, int) else 0


@dataclass(frozen=True)
class FieldValue(Value):
    """A number of the record, sign-extended or zero-extended."""

    where: Number

    def of(self, hit: Hit) -> int:
        return self.where.read(hit.record) & MASK


@dataclass(frozen=True)
class TextValue(Value):
    """A text of the record, cut to the size of a key of its field."""

    where: StaticText | DynamicText

    def of(self, hit: Hit) -> bytes:
        room = -(-self.where.size // 8) * 8 if isinstance(self.where, StaticText) else TEXT_SIZE
        return (self.where.read(hit.record, hit.context) or b"")[: room - 1]


@dataclass(frozen=True)
class Constant(Value):
    """A constant number."""

    value: int

    def of(self, hit: Hit) -> int:
        return self.value


class Cpu(Value):
    """The CPU that the thread runs on."""

    def of(self, hit: Hit) -> int:
        return hit.context.cpu


@dataclass(frozen=True)
class Timestamp(Value):
    """The time of the hit. `divisor`: 1000 for microseconds, rounded as by ns2usecs() of kernel/trace/trace.c."""

    divisor: int

    def of(self, hit: Hit) -> int:
        return (hit.timestamp + self.divisor // 2) // self.divisor


class Stack(Value):
    """The stack of the thread, innermost frame first."""

    def of(self, hit: Hit) -> bytes:
        return b"".join(address.to_bytes(8, "little") for address in hit.stack[:STACK_DEPTH])


class Comm(Value):
    """The name of the task, for a variable that holds `common_pid.execname`."""

    def of(self, hit: Hit) -> bytes:
        return hit.context.comm


@dataclass(frozen=True)
class Log2(Value):
    """The smallest n with 2^n >= a number; 0 if 2^n does not fit in a word, as for negative numbers."""

    operand: Value

    def of(self, hit: Hit) -> int:
        return max(self.operand.number(hit) - 1, 0).bit_length() % 64


@dataclass(frozen=True)
class Bucket(Value):
    """The start of the bucket of `width` that contains a number."""

    operand: Value
    width: int

    def of(self, hit: Hit) -> int:
        return self.operand.number(hit) // self.width * self.width


@dataclass(frozen=True)
class Reference(Value):
    """A variable. `key`: its key in `Hit.variables`."""

    key: object

    def of(self, hit: Hit) -> int | bytes:
        return hit.variables[self.key]


def _divide(dividend: int, divisor: int) -> int:
    return dividend // divisor if divisor else MASK


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}


@dataclass(frozen=True)
class Binary(Value):
    """Arithmetic on unsigned words, which wraps. A division by zero gives the largest word."""

    op: str
    left: Value
    right: Value

    def of(self, hit: Hit) -> int:
        return _OPERATIONS[self.op](self.left.number(hit), self.right.number(hit)) & MASK


_SHIFT = 20


@dataclass(frozen=True)
class Quotient(Value):
    """A number divided by a constant, as div_by_mult_and_shift() in kernel/trace/trace_events_hist.c: rounded up.

    Numbers and divisors beyond 20 bits, and divisors that are powers of two, round down.
    """

    dividend: Value
    divisor: int

    def of(self, hit: Hit) -> int:
        number = self.dividend.number(hit)
        is_shifted = self.divisor & (self.divisor - 1) and self.divisor <= 1 << _SHIFT
        if is_shifted and number < 1 << _SHIFT:
            return (number * ((1 << _SHIFT) // self.divisor) + (1 << _SHIFT) - 1) >> _SHIFT
        return number // self.divisor


@dataclass(frozen=True)
class Negative(Value):
    """The negative of a number."""

    operand: Value

    def of(self, hit: Hit) -> int:
        return -self.operand.number(hit) & MASK
