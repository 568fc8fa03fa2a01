"""The keys, values and variables of a hist trigger: their text in the trigger file, and how a hit's are computed."""

from __future__ import annotations

import enum
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ftrace.events.filters.fields import EventField
from ftrace.events.filters.predicates import Context, DynamicText, Number, StaticText
from ftrace.events.triggers.interfaces import Origin

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
    def origin(self) -> Origin:
        """The hit, as the cause of a generated event."""
        return Origin(self.thread, self.context.comm, self.timestamp, self.context.cpu, self.stack)

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
        size = -(-self.where.size // 8) * 8 if isinstance(self.where, StaticText) else TEXT_SIZE
        return (self.where.read(hit.record, hit.context) or b"")[: size - 1]


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


@dataclass(frozen=True)
class StackValue(Value):
    """A stack in the record: the word at `offset` has its place; the number of addresses is in front of them."""

    offset: int

    def of(self, hit: Hit) -> bytes:
        start = int.from_bytes(hit.record[self.offset : self.offset + 2], "little")
        count = int.from_bytes(hit.record[start : start + 8], "little")
        return hit.record[start + 8 :][: 8 * min(count, STACK_DEPTH)]


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


class Role(enum.Enum):
    """The use of a field."""

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
    refers: tuple[object, ...] = ()
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
