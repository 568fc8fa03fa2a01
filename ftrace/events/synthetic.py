"""Synthetic events: the lines s of dynamic_events and the lines of synthetic_events.

    s:[synthetic/]NAME TYPE FIELD; TYPE FIELD; ...

As kernel/trace/trace_events_synth.c. They are defined, listed and deleted; triggers will generate them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ftrace.events import dynevent
from ftrace.events.dynevent import DynamicEvent, LineType, NotThisType, argv_split
from ftrace.events.error_log import error_log
from ftrace.events.registry import TraceEvent, event_registry, events_locked
from ftrace.probe_args.layout import COMMON_SIZE, Field
from ftrace.probe_args.types import is_good_name

GROUP = "synthetic"
_SUBSYSTEM = "synthetic_events"
_MAX_FIELDS = 64
_MAX_TEXT = 256
"""Bytes of the longest text of a field."""
_SIZES = {
    "s64": 8, "u64": 8, "s32": 4, "u32": 4, "s16": 2, "u16": 2, "s8": 1, "u8": 1, "char": 1, "unsigned char": 1,
    "int": 4, "unsigned int": 4, "long": 8, "unsigned long": 8, "pid_t": 4, "gfp_t": 4, "bool": 1,
}  # fmt: skip
_UNSIGNED = ("u", "gfp_t", "bool")
_ARRAY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[(\d*)\]")


@dataclass(frozen=True)
class SyntheticField:
    """A field: its type as it is listed, and its name."""

    type: str
    name: str

    @property
    def is_dynamic(self) -> bool:
        """Whether it is text of any length."""
        return self.type == "char[]"

    @property
    def size(self) -> int:
        """Bytes in a record."""
        base, bracket, count = self.type.partition("[")
        if not bracket:
            return 8 if _SIZES[base] < 8 else _SIZES[base]
        return int(count.rstrip("]")) if count != "]" else 8

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


class SyntheticEvent(DynamicEvent):
    """A synthetic event."""

    def __init__(self, name: str, fields: Sequence[SyntheticField]) -> None:
        self.line_type = synthetic_lines
        self.name = name
        self.fields = tuple(fields)
        self.event = TraceEvent(GROUP, name, _layout(fields), _print_fmt(fields))

    @property
    def is_busy(self) -> bool:
        """Whether it is enabled, or a trigger uses it."""
        return self.event.is_busy

    @property
    def definition(self) -> str:
        """The line that synthetic_events shows."""
        return f"{self.name}\t{'; '.join(map(str, self.fields))}"

    def __str__(self) -> str:
        return f"s:{GROUP}/{self.definition}"

    def matches(self, group: str | None, event: str, words: Sequence[str]) -> bool:
        """By its name only: the fields are not compared."""
        return event == self.name and group in (None, GROUP)

    def free(self) -> None:
        """Delete it. Raises OSError(EBUSY)."""
        if self.is_busy:
            raise OSError(errno.EBUSY, f"synthetic event {self.name!r} is in use")
        event_registry.remove(self.event)
        dynevent.dyn_event_remove(self)


def _layout(fields: Sequence[SyntheticField]) -> list[Field]:
    offset, made = COMMON_SIZE, []
    for field in fields:
        kind = "__data_loc char[]" if field.is_dynamic else field.type
        signed = not field.type.startswith(_UNSIGNED)
        made.append(Field(kind, field.name, offset, field.size, signed))
        offset += field.size
    return made


def _print_fmt(fields: Sequence[SyntheticField]) -> str:
    formats, values = [], []
    for field in fields:
        formats.append(f"{field.name}=" + ("%.*s" if field.is_dynamic else "%s" if "[" in field.type else "%lld"))
        values.append(f"__get_str({field.name})" if field.is_dynamic else f"REC->{field.name}")
    return ", ".join([f'"{", ".join(formats)}"', *values])


class SyntheticLines(LineType):
    """The lines s."""

    def create(self, line: str) -> None:
        """Define the event of `s:[synthetic/]NAME FIELDS`. Raises NotThisType, OSError."""
        if not argv_split(line):
            return
        if not line.startswith("s:"):
            raise NotThisType
        name, _, fields = line[2:].strip().partition(" ")
        group, slash, bare = name.partition("/")
        if slash and group != GROUP:
            raise _refused("Dynamic synthetic event command, invalid", line)
        define(bare if slash else name, fields, line)


synthetic_lines = SyntheticLines()
"""The type of lines that dynamic_events hands to this module."""


def define(name: str, fields: str, line: str) -> None:
    """Define a synthetic event. Raises OSError: EINVAL, with an entry in error_log; EEXIST."""
    if not is_good_name(name):
        raise _refused("Bad synthetic event name", line)
    parsed = [_field(text.strip(), line) for text in fields.split(";") if text.strip()]
    if not parsed:
        raise _refused("No fields or invalid fields", line)
    if len(parsed) > _MAX_FIELDS:
        raise _refused("Too many fields", line)
    with events_locked():
        made = SyntheticEvent(name, parsed)
        event_registry.add(made.event)
        dynevent.dyn_event_add(made)


def _field(text: str, line: str) -> SyntheticField:
    kind, _, name = " ".join(argv_split(text)).rpartition(" ")
    array = _ARRAY.fullmatch(name)
    if array:
        name, kind = array[1], f"{kind}[{array[2]}]"
    if not is_good_name(name):
        raise _refused("Bad field name" if name else "Invalid field", line)
    base, bracket, count = kind.partition("[")
    number = count.rstrip("]")
    if base not in _SIZES or (bracket and base != "char") or (number and not 0 < int(number) <= _MAX_TEXT):
        raise _refused("Invalid type", line)
    return SyntheticField(kind, name)


def _refused(message: str, line: str) -> OSError:
    error_log.add(_SUBSYSTEM, message, line, 0)
    return OSError(errno.EINVAL, f"{line!r}: {message}")


def run_line(line: str) -> None:
    """Run a line of synthetic_events: `NAME FIELDS`, or `!NAME` to delete. Raises OSError."""
    words = argv_split(line)
    if not words:
        return
    if words[0].startswith("!"):
        dynevent.dyn_event_release(f"-:{GROUP}/{words[0][1:]}", synthetic_lines)
        return
    name, _, fields = line.strip().partition(" ")
    define(name, fields, line)


def show() -> str:
    """What synthetic_events reads."""
    events = dynevent.dynamic_events(synthetic_lines)
    return "".join(f"{event.definition}\n" for event in events if isinstance(event, SyntheticEvent))


@cache
def register_synthetic_events() -> None:
    """Have dynamic_events take the lines s."""
    dynevent.dyn_event_register(synthetic_lines)
