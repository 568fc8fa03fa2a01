"""The keys, values and variables of a hist trigger: their text in the trigger file, and how a hit's are computed."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Protocol

from ftrace.tracing.events.filters.fields import EventField
from ftrace.tracing.events.filters.predicates import DynamicText, Number, StaticText

MASK = (1 << 64) - 1
STACK_DEPTH = 16
"""The maximum number of frames in a stack trace that is a key."""
TEXT_SIZE = 256
"""Size of a text that is a key, with its final 0, in bytes."""


class Value:
    """A value that is computed from a hit, as a tree. Numbers are unsigned 64-bit words."""


@dataclass(frozen=True)
class FieldValue(Value):
    """A number of the record, sign-extended or zero-extended."""

    where: Number


@dataclass(frozen=True)
class TextValue(Value):
    """A text of the record, cut to the size of a key of its field."""

    where: StaticText | DynamicText


@dataclass(frozen=True)
class Constant(Value):
    """A constant number."""

    value: int


class Cpu(Value):
    """The CPU that the thread runs on."""


@dataclass(frozen=True)
class Timestamp(Value):
    """The time of the hit. `divisor`: 1000 for microseconds, rounded as by ns2usecs() of kernel/trace/trace.c."""

    divisor: int


class Stack(Value):
    """The stack of the thread, innermost frame first."""


@dataclass(frozen=True)
class StackValue(Value):
    """A stack in the record: the word at `offset` has its place; the number of addresses is in front of them."""

    offset: int


class Comm(Value):
    """The name of the task, for a variable that holds `common_pid.execname`."""


@dataclass(frozen=True)
class Log2(Value):
    """The smallest n with 2^n >= a number; 0 if 2^n does not fit in a word, as for negative numbers."""

    operand: Value


@dataclass(frozen=True)
class Bucket(Value):
    """The start of the bucket of `width` that contains a number."""

    operand: Value
    width: int


class VariableIdentity(Protocol):
    """A variable's identity, which can be a dictionary's key. `kind`: of its values, as in operations."""

    @property
    def kind(self) -> int: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Reference(Value):
    """A variable of another histogram."""

    key: VariableIdentity


@dataclass(frozen=True)
class Binary(Value):
    """Arithmetic on unsigned words, which wraps. A division by zero gives the largest word."""

    op: str
    left: Value
    right: Value


@dataclass(frozen=True)
class Quotient(Value):
    """A number divided by a constant, as div_by_mult_and_shift() in kernel/trace/trace_events_hist.c: rounded up.

    Numbers and divisors beyond 20 bits, and divisors that are powers of two, round down.
    """

    dividend: Value
    divisor: int


def is_rounded_up(divisor: int) -> bool:
    """Whether division by a constant multiplies and shifts, and so rounds up, for numbers below 2^20."""
    return bool(divisor & (divisor - 1)) and divisor <= 1 << _SHIFT


def quotient(number: int, divisor: int) -> int:
    """A number divided by a constant, as `Quotient` says."""
    if is_rounded_up(divisor) and number < 1 << _SHIFT:
        return (number * ((1 << _SHIFT) // divisor) + (1 << _SHIFT) - 1) >> _SHIFT
    return number // divisor


_SHIFT = 20


@dataclass(frozen=True)
class Negative(Value):
    """The negative of a number."""

    operand: Value


class FieldUse(enum.Enum):
    KEY = "key"
    VALUE = "value"
    VARIABLE = "variable"


class Sort(enum.Enum):
    """The source of a field's value (HIST_FIELD_FL_*)."""

    NUMBER = "a number of the record"
    TEXT = "a text of the record"
    HITCOUNT = "the number of hits"
    CPU = "the current CPU"
    TIMESTAMP = "the time"
    STACKTRACE = "a stack trace"
    CONSTANT = "a literal"
    EXPRESSION = "arithmetic"
    REFERENCE = "a variable"
    ALIAS = "a variable under another name"
    COMM = "the task's name"


@dataclass(frozen=True)
class HistField:
    """A key, a value or a variable (struct hist_field).

    `modifier`: as listed, without its argument. `type`, `size` and `signed` must match a synthetic event's field.
    """

    name: str
    value: Value
    sort: Sort
    type: str = "u64"
    size: int = 8
    signed: bool = False
    modifier: str = ""
    buckets: int = 0
    variable: str | None = None
    field: EventField | None = None
    refers: tuple[VariableIdentity, ...] = ()
    """The variables that the field refers to."""
    constant: int | None = None
    """The number that a literal, or a reference to a variable that was assigned one, stands for."""
    timestamp_unit: str = ""
    """`usecs` for times in microseconds."""

    def as_variable(self, name: str) -> HistField:
        """The same field, assigned to a variable."""
        return replace(self, variable=name)

    @property
    def title(self) -> str:
        """The name in a histogram's text and in `sort=`, as hist_field_name(). Empty for a literal."""
        return "" if self.sort is Sort.CONSTANT else self.name

    @property
    def key_size(self) -> int:
        """The size as a key, in bytes: a multiple of a word."""
        return -(-self.size // 8) * 8

    @property
    def is_text(self) -> bool:
        """Whether values are text."""
        return self.sort in (Sort.TEXT, Sort.COMM)

    @property
    def sign(self) -> tuple[object, ...]:
        """Equal for fields of two triggers that count as the same."""
        field = self.field
        shape = (field.name, field.type, field.size, field.signed) if field else None
        return self.sort, self.modifier, shape, self.size, self.signed, self.variable

    def listed(self) -> str:
        """The field's text in the trigger file, as hist_field_print() writes it."""
        prefix = f"{self.variable}=" if self.variable is not None else ""
        if self.sort is Sort.STACKTRACE:
            return f"{prefix}{self.name}{'.stacktrace' if self.field else ''}"
        dollar = "$" if self.sort in (Sort.REFERENCE, Sort.ALIAS) else ""
        name = "common_cpu" if self.sort is Sort.CPU else self.name  # also for `cpu` and `CPU`, as its title shows it
        modifier = f".{self.modifier}" if self.modifier and self.sort is not Sort.EXPRESSION else ""
        buckets = f"={self.buckets}" if self.buckets else ""
        return f"{prefix}{dollar}{name}{modifier}{buckets}"

    def operand(self) -> str:
        """The field's text in the name of an expression."""
        if self.sort is Sort.REFERENCE:
            return f"${self.name}"
        modifier = self.timestamp_unit if self.sort is Sort.EXPRESSION else self.modifier
        return f"{self.name}.{modifier}" if modifier else self.name
