"""The files that enable events: set_event, and events/ with the directories of groups and events."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial

from ftrace.tracing.events.builtin import BUILTIN_EVENTS, GROUP, PRINT
from ftrace.tracing.events.event_file import EventFile
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.filters.filter_file import GROUP_HELP, write_group_filter
from ftrace.tracing.events.hist.hist_trigger import read_hists, register_hist_command
from ftrace.tracing.events.registry import TraceEvent, enable_state, event_registry, set_all_enabled
from ftrace.tracing.files.nodes import Directory, Handle, Node, TextFile, TextHandle, written_switch
from ftrace.tracing.instances.trace_array import TraceArray
from ftrace.tracing.tracefs.buffer_files import header_event, header_page


class EventsDirectory(Directory):
    """`events`, and the tree below it: directories with the mode and the link of the kernel's eventfs."""

    mode = 0o755

    @property
    def links(self) -> int:
        """One, whatever is in it."""
        return 1


def _present(event: TraceEvent, read: Callable[[], str]) -> Callable[[], str]:
    """`read`, but raising OSError(ENODEV) once the event has been removed."""

    def checked() -> str:
        if event.removed:
            raise OSError(errno.ENODEV, f"event {event.group}/{event.name} has been removed")
        return read()

    return checked


def _event_directory(event: TraceEvent, array: TraceArray) -> EventsDirectory:
    file = event.file_in(array)
    if not isinstance(file.directory, EventsDirectory):
        file.directory = _made_directory(event, array, file)
    return file.directory


def _made_directory(event: TraceEvent, array: TraceArray, file: EventFile) -> EventsDirectory:

    def enable(text: str) -> None:
        on = written_switch(text)
        if event.removed:
            raise OSError(errno.ENODEV, f"event {event.group}/{event.name} has been removed")
        array.is_expanded = True
        file.set_enabled(on)

    files: Mapping[str, Node] = {
        "enable": TextFile(_present(event, lambda: f"{file.state}\n"), enable),
        "filter": TextFile(_present(event, file.filter.read), _locked(event, file.filter.write)),
        "format": TextFile(_present(event, event.format)),
        "hist": TextFile(_present(event, lambda: read_hists(file.triggers))),
        "id": TextFile(_present(event, lambda: f"{event.id}\n")),
        "trigger": _trigger_file(event, file),
    }
    return EventsDirectory(files)


def _builtin_directory(array: TraceArray) -> EventsDirectory:
    """`events/ftrace`: its events have no enable and no filter; only `print`, of trace_marker, has a trigger."""
    directories: dict[str, Node] = {}
    for event in BUILTIN_EVENTS:
        files: dict[str, Node] = {
            "format": TextFile(event.format),
            "hist": TextFile(partial(read_hists, event.file_in(array).triggers)),
            "id": TextFile(partial("{}\n".format, event.id)),
        }
        if event is PRINT:
            files["trigger"] = _trigger_file(event, event.file_in(array))
        directories[event.name] = EventsDirectory(files)
    return EventsDirectory(directories)


def _locked(event: TraceEvent, write: Callable[[str], None]) -> Callable[[str], None]:
    """`write` with event_mutex held, but raising OSError(ENODEV) once the event has been removed."""

    def locked(text: str) -> None:
        with events_locked():
            if event.removed:
                raise OSError(errno.ENODEV, f"event {event.group}/{event.name} has been removed")
            write(text)

    return locked


def _trigger_file(event: TraceEvent, file: EventFile) -> TextFile:
    triggers = file.triggers

    def truncate() -> None:
        with events_locked():
            triggers.truncate()

    return TextFile(_present(event, triggers.read), _locked(event, triggers.write), truncate)


def _write_group_filter(group: str, array: TraceArray, text: str) -> None:
    with events_locked():
        write_group_filter([event.file_in(array).filter for event in event_registry.events(group)], text)


def _group_directory(group: str, array: TraceArray) -> EventsDirectory:
    files: dict[str, Node] = {
        "enable": _enable_of(lambda: event_registry.events(group), array),
        "filter": TextFile(lambda: GROUP_HELP, partial(_write_group_filter, group, array)),
    }

    def entries() -> Mapping[str, Node]:
        return files | {event.name: _event_directory(event, array) for event in event_registry.events(group)}

    def find(name: str) -> Node | None:
        event = event_registry.find(group, name)
        return _event_directory(event, array) if event is not None else files.get(name)

    return EventsDirectory(entries, find)


def _enable_of(events: Callable[[], list[TraceEvent]], array: TraceArray) -> TextFile:
    def files() -> list[EventFile]:
        return [event.file_in(array) for event in events()]

    def write(text: str) -> None:
        on = written_switch(text)
        array.is_expanded = True
        set_all_enabled(files(), on)

    return TextFile(lambda: f"{enable_state(files())}\n", write)


def events_directory(array: TraceArray) -> EventsDirectory:
    """The directory `events` of a trace array. Its entries are made from the registry at each access."""

    register_hist_command()
    builtin = _builtin_directory(array)

    top: dict[str, Node] = {
        "enable": _enable_of(event_registry.events, array),
        "header_event": TextFile(header_event),
        "header_page": TextFile(lambda: header_page(array)),
        GROUP: builtin,
    }

    def find(name: str) -> Node | None:
        if name == GROUP or not event_registry.has_group(name):
            return entries().get(name) if name == GROUP else top.get(name)
        return _group_directory(name, array)

    def entries() -> Mapping[str, Node]:
        groups = {group: _group_directory(group, array) for group in event_registry.groups()}
        if GROUP in groups:
            return top | groups | {GROUP: EventsDirectory({**builtin.entries, **groups[GROUP].entries})}
        return top | groups

    return EventsDirectory(entries, find)


_BLANK = " \t\n\v\f\r"
_END = _BLANK + "\0"
_TOKEN_LIMIT = 127


def enabled_events(array: TraceArray) -> str:
    """A line `GROUP:EVENT` for each event that is enabled in a trace array, newest definition first.

    As s_next() in kernel/trace/trace_events.c: an event whose triggers need its hits is listed.
    """
    events = reversed(event_registry.events())
    return "".join(f"{event.group}:{event.name}\n" for event in events if event.file_in(array).is_on)


def apply_token(token: str, array: TraceArray) -> None:
    """Enable the events that a token names, or disable them if it begins with `!`. Raises OSError(EINVAL) if it names none.

    A token is `GROUP:EVENT`, `GROUP:*`, `*:EVENT`, or the name of a group or of events.
    """
    name = token.removeprefix("!")
    chosen = [event.file_in(array) for event in event_registry.events() if _matches(name, event)]
    if not chosen:
        raise OSError(errno.EINVAL, f"no event matches {name!r}; available_events lists the events")
    set_all_enabled(chosen, not token.startswith("!"))


def _matches(name: str, event: TraceEvent) -> bool:
    group, colon, bare = name.partition(":")
    if not colon:
        return name in (event.group, event.name)
    return group in ("", "*", event.group) and bare in ("", "*", event.name)


def _take_token(array: TraceArray, text: str) -> int:
    """Apply the first token of `text`. Returns the number of characters that were consumed."""
    array.is_expanded = True
    start = len(text) - len(text.lstrip(_BLANK))
    end = next((index for index in range(start, len(text)) if text[index] in _END), len(text))
    if end - start > _TOKEN_LIMIT:
        raise OSError(errno.EINVAL, f"a token has {end - start} characters; the maximum is {_TOKEN_LIMIT}")
    if end > start:
        apply_token(text[start:end], array)
    return min(end + 1, len(text))


class SetEventFile(Node):
    """set_event of a trace array. Opening it for writing with O_TRUNC disables all events of the trace array."""

    def __init__(self, array: TraceArray) -> None:
        self._array = array

    def open(self, flags: int) -> Handle:
        """Open the file. Raises OSError if an event cannot be disabled."""
        if flags & os.O_TRUNC and flags & os.O_ACCMODE != os.O_RDONLY:
            for event in event_registry.events():
                event.file_in(self._array).set_enabled(False)
        return TextHandle(lambda: enabled_events(self._array), partial(_take_token, self._array))
