"""events/: the directories of groups and events, with enable, filter, format, id and trigger."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial

from ftrace.events.builtin import BUILTIN_EVENTS, GROUP, PRINT
from ftrace.events.registry import TraceEvent, enable_state, event_registry, set_all_enabled
from ftrace.events.trace_array import global_trace
from ftrace.tracefs.buffer_files import header_event, header_page
from ftrace.tracefs.nodes import Directory, Node, TextFile
from ftrace.tracefs.numbers import written_switch

_TRIGGERS = (
    "# Available triggers:\n"
    "# traceon traceoff snapshot stacktrace enable_event disable_event enable_hist disable_hist hist\n"
)
_GROUP_FILTER = (
    "### global filter ###\n"
    "# Use this to set filters for multiple events.\n"
    "# Only events with the given fields will be affected.\n"
    "# If no events are modified, an error message will be displayed here\n"
)


def _present(event: TraceEvent, read: Callable[[], str]) -> Callable[[], str]:
    """`read`, which raises OSError(ENODEV) once the event is gone."""

    def checked() -> str:
        if event.removed:
            raise OSError(errno.ENODEV, f"event {event.group}/{event.name} is gone")
        return read()

    return checked


def _event_directory(event: TraceEvent) -> Directory:
    def enable(text: str) -> None:
        on = written_switch(text)
        if event.removed:
            raise OSError(errno.ENODEV, f"event {event.group}/{event.name} is gone")
        event.set_enabled(on)

    files: Mapping[str, Node] = {
        "enable": TextFile(_present(event, lambda: f"{int(event.enabled)}\n"), enable),
        "filter": TextFile(_present(event, lambda: "none\n"), _no_filter),
        "format": TextFile(_present(event, event.format)),
        "hist": TextFile(_present(event, lambda: "")),
        "id": TextFile(_present(event, lambda: f"{event.id}\n")),
        "trigger": TextFile(_present(event, lambda: _TRIGGERS), _no_trigger),
    }
    return Directory(files)


def _builtin_directory() -> Directory:
    """`events/ftrace`: no enable and no filter, and a trigger only for what is written to trace_marker."""
    directories: dict[str, Node] = {}
    for event in BUILTIN_EVENTS:
        files: dict[str, Node] = {
            "format": TextFile(event.format),
            "hist": TextFile(lambda: ""),
            "id": TextFile(partial("{}\n".format, event.id)),
        }
        if event is PRINT:
            files["trigger"] = TextFile(lambda: _TRIGGERS, _no_trigger)
        directories[event.name] = Directory(files)
    return Directory(directories)


def _no_filter(text: str) -> None:
    if text.strip() != "0":
        raise OSError(errno.EINVAL, "event filters cannot be set yet; 0 clears")


def _no_trigger(text: str) -> None:
    raise OSError(errno.EINVAL, "event triggers cannot be set yet")


def _group_directory(group: str) -> Directory:
    def entries() -> Mapping[str, Node]:
        files: dict[str, Node] = {
            "enable": _enable_of(lambda: event_registry.events(group)),
            "filter": TextFile(lambda: _GROUP_FILTER, _no_filter),
        }
        return files | {event.name: _event_directory(event) for event in event_registry.events(group)}

    return Directory(entries)


def _enable_of(events: Callable[[], list[TraceEvent]]) -> TextFile:
    def write(text: str) -> None:
        set_all_enabled(events(), written_switch(text))

    return TextFile(lambda: f"{enable_state(events())}\n", write)


def events_directory() -> Directory:
    """`events`: made from the registry whenever it is looked at."""

    builtin = _builtin_directory()

    def entries() -> Mapping[str, Node]:
        top: dict[str, Node] = {
            "enable": _enable_of(event_registry.events),
            "header_event": TextFile(header_event),
            "header_page": TextFile(lambda: header_page(global_trace())),
            GROUP: builtin,
        }
        groups = {group: _group_directory(group) for group in event_registry.groups()}
        if GROUP in groups:
            return top | groups | {GROUP: Directory({**builtin.entries, **groups[GROUP].entries})}
        return top | groups

    return Directory(entries)
