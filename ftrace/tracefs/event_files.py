"""events/: the directories of groups and events, with enable, filter, format, id and trigger."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial

from ftrace.events.builtin import BUILTIN_EVENTS, GROUP, PRINT
from ftrace.events.event_file import EventFile
from ftrace.events.event_mutex import events_locked
from ftrace.events.filters.filter_file import GROUP_HELP, write_group_filter
from ftrace.events.hist.trigger import read_hists, register_hist_command
from ftrace.events.registry import TraceEvent, enable_state, event_registry, set_all_enabled
from ftrace.events.trace_array import TraceArray
from ftrace.tracefs.buffer_files import header_event, header_page
from ftrace.tracefs.nodes import Directory, Node, TextFile
from ftrace.tracefs.numbers import written_switch


def _present(event: TraceEvent, read: Callable[[], str]) -> Callable[[], str]:
    """`read`, but raising OSError(ENODEV) once the event has been removed."""

    def checked() -> str:
        if event.removed:
            raise OSError(errno.ENODEV, f"event {event.group}/{event.name} has been removed")
        return read()

    return checked


def _event_directory(event: TraceEvent, array: TraceArray) -> Directory:
    file = event.file_in(array)

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
    return Directory(files)


def _builtin_directory(array: TraceArray) -> Directory:
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
        directories[event.name] = Directory(files)
    return Directory(directories)


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


def _group_directory(group: str, array: TraceArray) -> Directory:
    def entries() -> Mapping[str, Node]:
        files: dict[str, Node] = {
            "enable": _enable_of(lambda: event_registry.events(group), array),
            "filter": TextFile(lambda: GROUP_HELP, partial(_write_group_filter, group, array)),
        }
        return files | {event.name: _event_directory(event, array) for event in event_registry.events(group)}

    return Directory(entries)


def _enable_of(events: Callable[[], list[TraceEvent]], array: TraceArray) -> TextFile:
    def files() -> list[EventFile]:
        return [event.file_in(array) for event in events()]

    def write(text: str) -> None:
        on = written_switch(text)
        array.is_expanded = True
        set_all_enabled(files(), on)

    return TextFile(lambda: f"{enable_state(files())}\n", write)


def events_directory(array: TraceArray) -> Directory:
    """The directory `events` of a trace array. Its entries are made from the registry at each access."""

    register_hist_command()
    builtin = _builtin_directory(array)

    def entries() -> Mapping[str, Node]:
        top: dict[str, Node] = {
            "enable": _enable_of(event_registry.events, array),
            "header_event": TextFile(header_event),
            "header_page": TextFile(lambda: header_page(array)),
            GROUP: builtin,
        }
        groups = {group: _group_directory(group, array) for group in event_registry.groups()}
        if GROUP in groups:
            return top | groups | {GROUP: Directory({**builtin.entries, **groups[GROUP].entries})}
        return top | groups

    return Directory(entries)
