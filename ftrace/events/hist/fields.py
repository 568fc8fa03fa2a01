"""The fields of a hist trigger (keys, values and variables), and their text in the trigger file."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ftrace.events.filters.fields import EventField
from ftrace.events.hist.values import Value


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
    variable: str = ""
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
        prefix = f"{self.variable}=" if self.variable else ""
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
