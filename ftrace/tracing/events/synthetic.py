"""Synthetic events: the lines s of dynamic_events, and the lines of synthetic_events.

    s:[synthetic/]NAME TYPE FIELD; TYPE FIELD; ...

As kernel/trace/trace_events_synth.c. Hist triggers generate the events.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ftrace.core.kstrtox import kstrtouint
from ftrace.core.runtime import runtime
from ftrace.hit.events.event_state import EventState
from ftrace.hit.events.synthetic_records import DYNAMIC_STACK, DYNAMIC_TEXT, FUNCTIONS, NUMBER, TEXT, SyntheticRecord
from ftrace.hit.events.synthetic_records import SyntheticField as NativeField
from ftrace.tracing.events import dynevent
from ftrace.tracing.events.dynevent import DynamicEvent, LineType, NotThisType, argv_split
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.hit.recording import aim, event_memory
from ftrace.tracing.events.registry import TraceEvent, event_registry
from ftrace.tracing.events.triggers.interfaces import SYNTHETIC as GROUP
from ftrace.tracing.events.triggers.interfaces import NativeCall
from ftrace.tracing.instances.error_log import error_log
from ftrace.tracing.probe_args.layout import COMMON_SIZE, Field
from ftrace.tracing.probe_args.types import is_good_name
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

_SUBSYSTEM = "synthetic_events"
_MAX_FIELDS = 64
_MAX_LOGGED = 255
"""Characters of a definition that error_log keeps, and looks for the wrong text in."""
_MAX_TEXT = 256
"""Bytes that text of any fixed length takes in a record."""
_WORD = 8
_NUMBERS = {
    "s64": (8, "%lld"), "u64": (8, "%llu"), "s32": (4, "%d"), "u32": (4, "%u"), "s16": (2, "%d"), "u16": (2, "%u"),
    "s8": (1, "%d"), "u8": (1, "%u"), "char": (1, "%d"), "unsigned char": (1, "%u"), "int": (4, "%d"),
    "unsigned int": (4, "%u"), "long": (8, "%ld"), "unsigned long": (8, "%lu"), "bool": (1, "%d"), "pid_t": (4, "%d"),
    "gfp_t": (4, "%x"),
}  # fmt: skip
"""Size and conversion of each type of number."""

_ILLEGAL_NAME = "Illegal name"
_INVALID_COMMAND = "Command must be of the form: <name> field[;field] ..."
_INVALID_DYNAMIC = "Command must be of the form: s or -:[synthetic/]<name> field[;field] ..."
_EXISTS = "Event already exists"
_TOO_MANY = "Too many fields"
_INCOMPLETE_TYPE = "Incomplete type"
_INVALID_TYPE = "Invalid type"
_INVALID_FIELD = "Invalid field"
_INVALID_ARRAY = "Invalid array specification"


@dataclass(frozen=True)
class SyntheticField:
    """A field: its type as listed, and its name. `length`: of text, 0 for any length; None for other types."""

    type: str
    name: str
    length: int | None = None

    @property
    def is_stack(self) -> bool:
        """Whether the field is a stack trace."""
        return "long[" in self.type

    @property
    def is_dynamic(self) -> bool:
        """Whether the record has a word with the offset and length of the value."""
        return self.length == 0 or self.is_stack

    @property
    def size(self) -> int:
        """Size in bytes, as `format` shows it."""
        if self.is_dynamic:
            return _WORD
        return self.length or _NUMBERS[self.type][0]

    @property
    def kind(self) -> int:
        """How hits write it: see ftrace.hit.events.synthetic_records."""
        if self.is_stack:
            return DYNAMIC_STACK
        if self.length is None:
            return NUMBER
        return TEXT if self.length else DYNAMIC_TEXT

    @property
    def space(self) -> int:
        """Bytes from the field's start to the next field's."""
        return _MAX_TEXT if self.length else _WORD

    @property
    def printf(self) -> str:
        """The conversion in `print fmt`."""
        return "%s" if self.is_stack or self.length is not None else _NUMBERS[self.type][1]

    @property
    def value(self) -> str:
        """The argument in `print fmt`."""
        if self.is_stack:
            return f"__get_stacktrace({self.name})"
        return f"__get_str({self.name})" if self.is_dynamic else f"REC->{self.name}"

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


class GeneratedEvent(TraceEvent):
    """A synthetic event, as hits of other events generate it."""

    def __init__(self, name: str, fields: Sequence[SyntheticField]) -> None:
        layout = _layout(fields)
        super().__init__(GROUP, name, layout, _print_fmt(fields))
        self._state: Any = EventState.ctypes(scratch=event_memory().scratch)
        self._record: Any = SyntheticRecord.ctypes(state=ctypes.addressof(self._state), count=len(layout))
        for index, (field, place) in enumerate(zip(fields, layout, strict=True)):
            self._record.fields[index] = NativeField.ctypes(field.kind, place.offset, place.size)
        self._record.fixed = COMMON_SIZE + sum(field.space for field in fields)

    @property
    def generator(self) -> NativeCall:
        """The call that records the event."""
        address = synthetic_image().address("event_generate")
        return NativeCall(address, ctypes.addressof(self._record), (self._record, self._state))

    def arm(self) -> None:
        """Record for the trace arrays that use the event."""
        self.retarget()

    def retarget(self) -> None:
        """Follow a change of the trace arrays that use the event."""
        aim(self._state, self.id, [file.target for file in self.used_files])

    def disarm(self) -> None:
        """Record nothing."""
        aim(self._state, self.id, ())


@once
def synthetic_image() -> NativeImage:
    """The native function that generates events, linked when the first action needs it."""
    image = NativeImage.of(Unit("event-synthetic", FUNCTIONS, bounded=False), uses=runtime().image)
    image.variable("task_offset").value = runtime().key.offset
    image.publish()
    return image


class SyntheticEvent(DynamicEvent):
    def __init__(self, name: str, fields: Sequence[SyntheticField]) -> None:
        self.line_type = synthetic_lines
        self.name = name
        self.fields = tuple(fields)
        self.event = GeneratedEvent(name, self.fields)

    @property
    def is_busy(self) -> bool:
        """Whether a trigger uses the event. `free` also refuses to delete an enabled one."""
        return self.event.references > 0

    @property
    def definition(self) -> str:
        """The line that synthetic_events shows."""
        return f"{self.name}\t{'; '.join(map(str, self.fields))}"

    def __str__(self) -> str:
        return f"s:{GROUP}/{self.definition}"

    def matches(self, group: str | None, event: str, words: Sequence[str]) -> bool:
        """Compares the name only, not the fields."""
        return event == self.name and group in (None, GROUP)

    def free(self) -> None:
        """Delete the event. Raises OSError(EBUSY)."""
        if self.event.is_busy:
            raise OSError(
                errno.EBUSY,
                f"synthetic event {self.name!r} is enabled or used by a trigger; disable it and remove the trigger first",
            )
        event_registry.remove(self.event)
        dynevent.dyn_event_remove(self)


def _layout(fields: Sequence[SyntheticField]) -> list[Field]:
    offset, made = COMMON_SIZE, []
    for field in fields:
        kind = f"__data_loc {field.type}" if field.is_dynamic else field.type
        signed = not kind.startswith("u") and kind != "gfp_t"
        made.append(Field(kind, field.name, offset, field.size, signed))
        offset += field.space
    return made


def _print_fmt(fields: Sequence[SyntheticField]) -> str:
    formats = ", ".join(f"{field.name}={field.printf}" for field in fields)
    return ", ".join([f'"{formats}"', *(field.value for field in fields)])


class _Command:
    """A definition's text, for errors: the caret is under the first occurrence of the wrong text."""

    def __init__(self, text: str) -> None:
        self.text = text[:_MAX_LOGGED]

    def refused(self, message: str, culprit: str = "", number: int = errno.EINVAL) -> OSError:
        """Add an error to error_log. Returns the exception to raise."""
        error_log.add(_SUBSYSTEM, message, self.text, max(self.text.find(culprit), 0))
        return OSError(number, f"{self.text!r}: {message}")


class SyntheticLines(LineType):
    """The type of line s."""

    def create(self, line: str) -> None:
        """Define the event of `s:[synthetic/]NAME FIELDS`. Raises NotThisType, OSError."""
        line = line.lstrip(" \t")
        if not argv_split(line):
            return
        if not line.startswith("s:"):
            raise NotThisType
        command = _Command(line)
        words = argv_split(line)
        name = words[0][2:]
        if len(words) < 2:
            raise command.refused(_INVALID_COMMAND)
        # As in the kernel, any slash ends the group.
        if "/" in line and not name.startswith(f"{GROUP}/"):
            raise command.refused(_INVALID_DYNAMIC)
        _define(command, name.removeprefix(f"{GROUP}/"), line[len(words[0]) :])


synthetic_lines = SyntheticLines()
"""The type that dynamic_events uses for lines s."""


def run_line(line: str) -> None:
    """Run a line of synthetic_events: `NAME FIELDS`, or `!NAME` to delete. Raises OSError."""
    line = line.lstrip(" \t")
    words = argv_split(line)
    if not words:
        return
    if words[0].startswith("!"):
        dynevent.dyn_event_release(f"-:{GROUP}/{words[0][1:]}", synthetic_lines)
        return
    _define(_Command(line), words[0], line[len(words[0]) :])


def _define(command: _Command, name: str, text: str) -> None:
    """Define a synthetic event. Raises OSError: EINVAL, EEXIST, with an entry in error_log."""
    if not name or len(argv_split(text.partition(";")[0])) < 2:
        raise command.refused(_INVALID_COMMAND)
    if not is_good_name(name):
        raise command.refused(_ILLEGAL_NAME, name)
    if event_registry.find(GROUP, name) is not None:
        raise command.refused(_EXISTS, name, errno.EEXIST)
    fields: list[SyntheticField] = []
    for field in (each for part in text.split(";") for each in _fields(command, argv_split(part))):
        if len(fields) == _MAX_FIELDS:
            raise command.refused(_TOO_MANY)
        fields.append(field)
    with events_locked():
        made = SyntheticEvent(name, fields)
        event_registry.add(made.event)
        dynevent.dyn_event_add(made)


def _fields(command: _Command, words: Sequence[str]) -> Iterator[SyntheticField]:
    """The fields between two semicolons. The old syntax allows several."""
    while words:
        prefix = ""
        if words[0] == "unsigned":
            if len(words) < 3:
                raise command.refused(_INCOMPLETE_TYPE, words[0])
            prefix, words = "unsigned ", words[1:]
        if len(words) < 2:
            raise command.refused(_INVALID_FIELD, words[0])
        yield _field(command, prefix, words[0], words[1])
        words = words[2:]


def _field(command: _Command, prefix: str, kind: str, written: str) -> SyntheticField:
    name, bracket, count = written.partition("[")
    if not is_good_name(name):
        raise command.refused(_ILLEGAL_NAME, written)
    whole = f"{prefix}{kind}{bracket}{count}"
    if whole in _NUMBERS:
        return SyntheticField(whole, name)
    if "char[" not in whole:
        if "long[" in whole:
            return SyntheticField(whole, name)
        raise command.refused(_INVALID_TYPE, kind)
    length = _text_length(whole.partition("char[")[2])
    if length is None:
        raise command.refused(_INVALID_ARRAY, written) if bracket else command.refused(_INVALID_TYPE, kind)
    return SyntheticField(whole, name, length)


def _text_length(rest: str) -> int | None:
    """The number before `]`: 0 if there is none, None if it is invalid."""
    number, closed, after = rest.partition("]")
    if not closed or after or len(number) > 3:
        return None
    try:
        length = kstrtouint(number) if number else 0
    except OSError:
        return None
    return length if length <= _MAX_TEXT else None


def show() -> str:
    """The text of synthetic_events."""
    events = dynevent.dynamic_events(synthetic_lines)
    return "".join(f"{event.definition}\n" for event in events if isinstance(event, SyntheticEvent))


@once
def register_synthetic_events() -> None:
    """Register the lines s with dynamic_events."""
    dynevent.dyn_event_register(synthetic_lines)
