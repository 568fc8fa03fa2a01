"""The fields that filters and histograms read: an event's own, generic and common fields."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ftrace.tracing.probe_args import layout


class EventField(Protocol):
    """A field of a record, as an event's `format` file describes it."""

    @property
    def type(self) -> str:
        """C type, as in `format`."""

    @property
    def name(self) -> str: ...

    @property
    def offset(self) -> int:
        """Bytes from the start of the record."""

    @property
    def size(self) -> int:
        """Bytes of the fixed part."""

    @property
    def signed(self) -> bool: ...


@dataclass(frozen=True)
class PlainField:
    """A generic or common field."""

    type: str
    name: str
    offset: int = 0
    size: int = 0
    signed: bool = False


class Kind(enum.Enum):
    """The kind of a field's value (enum filter_type)."""

    NUMBER = "a number of the field's size"
    STATIC_STRING = "text inside the record's fixed part"
    DYNAMIC_STRING = "text that a __data_loc refers to"
    COMM = "the name of the current task"
    CPU = "the current CPU"
    STACKTRACE = "a stack trace; no comparison matches it"

    @property
    def is_string(self) -> bool:
        """Whether values are text."""
        return self in (Kind.STATIC_STRING, Kind.DYNAMIC_STRING, Kind.COMM)


COMMON_FIELDS = tuple(PlainField(*values) for values in layout.COMMON_FIELDS)
_GENERIC = {
    **{name: (PlainField("int", name, signed=True), Kind.CPU) for name in ("CPU", "cpu", "common_cpu")},
    **{name: (PlainField("char *", name), Kind.COMM) for name in ("COMM", "comm")},
    **{name: (PlainField("char *", name), Kind.STACKTRACE) for name in ("stacktrace", "STACKTRACE")},
}


def kind_of(type_: str) -> Kind:
    """The kind of a field of C type `type_`, as filter_assign_type() decides it."""
    if "char" in type_:
        if "__data_loc" in type_:
            return Kind.DYNAMIC_STRING
        if "[" in type_:
            return Kind.STATIC_STRING
    return Kind.NUMBER


def known_fields(fields: Iterable[EventField]) -> str:
    """A sentence with the names of the fields that a filter or histogram can have, for one that is not there."""
    own = [field.name for field in fields if not field.name.startswith("__")]
    return f"the fields are {', '.join([*own, *(field.name for field in COMMON_FIELDS)])}"


def find_field(fields: Iterable[EventField], name: str) -> tuple[EventField, Kind] | None:
    """The field `name`: the event's own, else a generic, else a common field; None if there is none."""
    for field in fields:
        if field.name == name:
            return field, kind_of(field.type)
    if name in _GENERIC:
        return _GENERIC[name]
    return next(((field, Kind.NUMBER) for field in COMMON_FIELDS if field.name == name), None)
