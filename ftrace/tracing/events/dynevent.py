"""Dynamic events: running the lines that define and delete them, for every registered type of line.

As kernel/trace/trace_dynevent.c: `kprobes` and `fprobe` register the lines p, r, f and t; ftrace.tracing.events.event_probes
refuses the lines e.
"""

from __future__ import annotations

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.registry import event_registry
from ftrace.tracing.probe_args.errors import ErrorCode, error
from ftrace.tracing.probe_args.types import is_good_name

_LINE_LIMIT = 4095
"""The maximum length of a line in characters, with its newline if it has one."""


_WORD = re.compile(r"[^ \t\n\v\f\r]+")


def argv_split(line: str) -> list[str]:
    """The words of a line, as argv_split() in the kernel's lib/argv_split.c."""
    return _WORD.findall(line)


class NotThisType(Exception):
    """The line is of another type."""


class LineType(ABC):
    """A type of definition."""

    @abstractmethod
    def create(self, line: str) -> None:
        """Create the event that `line` defines; an empty line defines none. Raises NotThisType, OSError."""


class DynamicEvent(ABC):
    """An event, or a probe of an event, that one line has defined."""

    line_type: LineType

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether it is in use and cannot be deleted."""

    @abstractmethod
    def matches(self, group: str | None, event: str, words: Sequence[str]) -> bool:
        """Whether the deletion `-:[group/][event] [words]` matches it; `event` may be empty."""

    @abstractmethod
    def free(self) -> None:
        """Delete it. Raises OSError(EBUSY)."""

    @abstractmethod
    def __str__(self) -> str:
        """The line that `dynamic_events` shows."""


_Event = TypeVar("_Event", bound=DynamicEvent)
_types: list[LineType] = []
_events: list[DynamicEvent] = []
"""The dynamic events, in the order of creation."""


def dyn_event_register(line_type: LineType) -> None:
    """Register a type of line for `dynamic_events`."""
    if line_type not in _types:
        _types.append(line_type)


def dyn_event_add(event: DynamicEvent) -> None:
    """Append to the list of dynamic events."""
    _events.append(event)


def dyn_event_remove(event: DynamicEvent) -> None:
    """Remove from the list of dynamic events."""
    _events.remove(event)


def dynamic_events(line_type: LineType | None = None) -> list[DynamicEvent]:
    """The dynamic events in the order of creation: of one type, or all."""
    return [event for event in list(_events) if line_type is None or event.line_type is line_type]


def show(line_type: LineType | None = None) -> str:
    """The text of the file: a line for each event."""
    return "".join(f"{event}\n" for event in dynamic_events(line_type))


def create_dyn_event(line: str) -> None:
    """Run a line of `dynamic_events`. Raises OSError."""
    if line.startswith(("-", "!")):
        dyn_event_release(line)
        return
    if not argv_split(line):
        return
    for line_type in _types:
        try:
            line_type.create(line)
            return
        except NotThisType:
            continue
    if line[0] in "prft" and len(argv_split(line)) < 2:
        raise OSError(errno.EINVAL, f"the line is {line!r}, without a place; add a function: '{line.strip()} FUNCTION'")
    raise OSError(
        errno.EINVAL, f"the line is {line!r}; it must begin with the letter of a probe or event type, or with -:"
    )


def create_of_type(line: str, line_type: LineType) -> None:
    """Run a line of a file for a single type, such as kprobe_events. Raises OSError."""
    if line.startswith("-"):
        dyn_event_release(line, line_type)
        return
    try:
        line_type.create(line)
    except NotThisType:
        raise OSError(
            errno.EINVAL, f"the line {line!r} defines no event of this file's type; write other types to dynamic_events"
        ) from None


def dyn_event_release(line: str, line_type: LineType | None = None) -> None:
    """Delete the events that `-:[GROUP/][EVENT] [PLACE [ARGUMENTS]]` matches; `!anything:` is the same as `-:`.

    Raises OSError: EINVAL (no name), ENOENT (nothing matches), EBUSY (an event is in use; matches before it are deleted).
    """
    words = argv_split(line)
    group, event = _deletion(words[0])
    with events_locked():
        found = False
        try:
            for candidate in dynamic_events(line_type):
                if candidate.matches(group, event, words[1:]):
                    found = True
                    candidate.free()
        finally:
            event_registry.empty_left_records()
    if not found:
        raise OSError(errno.ENOENT, f"no event matches {line!r}; dynamic_events lists the events")


def release(events: Iterable[_Event]) -> list[_Event]:
    """Delete those of them that are still defined. Returns those that are in use, which stay."""
    with events_locked():
        there = [event for event in events if event in _events]
        busy = [event for event in there if event.is_busy]
        try:
            for event in there:
                if event not in busy:
                    event.free()
        finally:
            event_registry.empty_left_records()
    return busy


def _deletion(word: str) -> tuple[str | None, str]:
    """The group (None if not given) and the event in a deletion's first word."""
    before, colon, name = word.partition(":")
    if not colon or (word.startswith("-") and before != "-"):
        raise OSError(errno.EINVAL, f"{word!r} is not a deletion; write -:EVENT, -:GROUP/EVENT or -:GROUP/")
    group, slash, event = name.partition("/")
    if not slash:
        group, event = "", name
    if not slash and not event:
        raise OSError(errno.EINVAL, f"there is no event name in {word!r}; write -:EVENT, -:GROUP/EVENT or -:GROUP/")
    return (group if slash else None), event


def release_all(line_type: LineType | None = None) -> None:
    """Delete every event of a type, or of all types. If one is in use, raises OSError(EBUSY) and deletes none."""
    with events_locked():
        events = dynamic_events(line_type)
        for event in events:
            if event.is_busy:
                raise OSError(
                    errno.EBUSY,
                    f"{event} is enabled, or used by a trigger or a filter command; disable it and remove those first",
                )
        try:
            for event in events:
                event.free()
        finally:
            event_registry.empty_left_records()


def run_commands(text: str, create: Callable[[str], None]) -> None:
    """Run each line of a write, without its comment. Stops at the first line that fails; earlier lines stay in effect.

    Raises OSError: what `create` raises; EINVAL for a line that has a NUL or more than 4095 characters with its newline.
    """
    start = 0
    while start < len(text):
        newline = text.find("\n", start, start + _LINE_LIMIT)
        end = newline if newline >= 0 else start + _LINE_LIMIT
        if newline < 0 and end < len(text):
            raise OSError(errno.EINVAL, f"a line is too long; the maximum is {_LINE_LIMIT} characters with the newline")
        if "\0" in text[start:end]:
            raise OSError(errno.EINVAL, "a line has a NUL character; write text")
        create(text[start:end].partition("#")[0])
        start = end + 1


MAX_EVENT_NAME_LEN = 64
"""The maximum length of a group's or event's name with its NUL, in bytes."""
_GROUP = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*")


def parse_event_name(text: str, offset: int) -> tuple[str | None, str | None]:
    """The group and the event in `[GROUP/][EVENT]`; None for a part that is not given.

    `offset`: of `text` in its word. Raises ProbeError.
    """
    separator = "/" if "/" in text else "."
    group, mark, event = text.partition(separator)
    if not mark:
        group, event = "", text
    else:
        _check_group(group, offset)
        offset += len(group) + 1
    if not event:
        if mark:
            return group, None
        raise error(ErrorCode.NO_EVENT_NAME, offset)
    if len(event) >= MAX_EVENT_NAME_LEN:
        raise error(ErrorCode.EVENT_TOO_LONG, offset)
    if not is_good_name(event):
        raise error(ErrorCode.BAD_EVENT_NAME, offset)
    return group or None, event


def _check_group(group: str, offset: int) -> None:
    if not group:
        raise error(ErrorCode.NO_GROUP_NAME, offset)
    if len(group) >= MAX_EVENT_NAME_LEN:
        raise error(ErrorCode.GROUP_TOO_LONG, offset)
    if not _GROUP.fullmatch(group):
        raise error(ErrorCode.BAD_GROUP_NAME, offset)


def sanitized(name: str) -> str:
    """A generated event name, cut and cleaned as in the kernel. It may still not be an identifier.

    Beyond that, what names outside the kernel have: of files (`libstdc++-6`), versions (`@`), and of other languages.
    """
    name = name[: MAX_EVENT_NAME_LEN - 1]
    return name[:1] + re.sub(r"[^\w?\[\]]", "_", name[1:], flags=re.ASCII)
