"""The registry of the process's events: by group and name, with ids, formats and enabled states."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from heapq import heappop, heappush

from ftrace.tracing.events.event_file import EventFile
from ftrace.tracing.events.event_mutex import event_mutex, events_locked, free_after_hits
from ftrace.tracing.events.trace_actions import TraceActions
from ftrace.tracing.events.triggers.interfaces import NativeCall
from ftrace.tracing.instances.trace_array import TraceArray, global_trace
from ftrace.tracing.probe_args.layout import Field, format_text

FIRST_DYNAMIC_ID = 20
"""Lower ids belong to the kernel's built-in records."""
_IDS = 1 << 16


class TraceEvent:
    """An event: its name, its fields, and whether its hits are recorded.

    `group` is the directory under events/ that it is in. A subclass arms and disarms what produces the event.
    """

    def __init__(self, group: str, name: str, fields: Sequence[Field], print_fmt: str) -> None:
        self.group = group
        self.name = name
        self.fields = tuple(fields)
        self.print_fmt = print_fmt
        self.id = 0
        """Set while the event is registered."""
        self.is_armed = False
        """Whether it is produced: it is enabled, or a trigger needs its hits."""
        self.removed = False
        """Whether it has been unregistered. Its files that are still open fail with ENODEV."""
        self.references = 0
        """The number of other users, such as triggers of other events."""
        self.files: dict[TraceArray, EventFile] = {}
        """The event's file in each trace array; made on first use."""
        self.file = self.file_in(global_trace())
        """The event's file in the top level's trace array."""

    def file_in(self, array: TraceArray) -> EventFile:
        """The event's file in a trace array."""
        found = self.files.get(array)
        if found is None:
            with event_mutex:
                found = self.files.setdefault(array, EventFile(self, array, trace_actions(array)))
        return found

    def leave(self, array: TraceArray) -> None:
        """Remove the event's file from a trace array that is being removed, with its triggers."""
        with events_locked():
            file = self.files.get(array)
            if file is not None:
                file.triggers.remove_all()
                self.set_enabled(False, file)
                del self.files[array]
                self.retarget()
                self.free_after_hits(file)

    @property
    def enabled(self) -> bool:
        """Whether hits are recorded in the top level's trace array."""
        return self.file.enabled

    @property
    def ever_enabled(self) -> bool:
        """Whether it has been enabled in any trace array."""
        return any(file.ever_enabled for file in list(self.files.values()))

    @property
    def is_busy(self) -> bool:
        """Whether it must not be removed, since it is enabled or in use."""
        return self.is_armed or self.references > 0

    def format(self) -> str:
        """The text of its `format` file."""
        return format_text(self.name, self.id, self.fields, self.print_fmt)

    def set_enabled(self, on: bool, file: EventFile | None = None) -> None:
        """Start or stop recording the event, in the top level's trace array or that of `file`.

        Raises OSError if its probes cannot be armed; then nothing has changed.
        """
        with events_locked():
            file = file or self.file
            if on:
                self._start(file, recorded=True)
            else:
                file.is_recorded = False
                self._stop_unneeded()
            file.ever_enabled = file.ever_enabled or on

    def hold(self, file: EventFile | None = None) -> None:
        """Have the event produced for a trigger, even while it is disabled (soft mode). Calls are counted. Raises OSError."""
        with events_locked():
            file = file or self.file
            file.holders += 1
            try:
                self._start(file, recorded=False)
            except OSError:
                file.holders -= 1
                raise
            self.references += 1
            file.ever_enabled = True  # its triggers may enable it

    def release(self, file: EventFile | None = None) -> None:
        """Undo one `hold`."""
        with events_locked():
            file = file or self.file
            file.holders -= 1
            self.references -= 1
            self._stop_unneeded()

    @property
    def generator(self) -> NativeCall:
        """The call by which actions of histograms generate the event, if it is synthetic."""
        raise TypeError(f"{self.group}:{self.name} is no synthetic event")

    @property
    def used_files(self) -> list[EventFile]:
        """The files in which hits are recorded or run triggers."""
        return [file for file in self.files.values() if file.is_recorded or file.holders]

    def record(self, data: bytes) -> None:
        """Record the event, made by Python, in each trace array that wants it. `data`: the record after the common fields."""
        for file in self.used_files:
            file.record(data)

    def free_after_hits(self, used: object) -> None:
        """Keep an object that hits have used until no hit uses it any more."""
        free_after_hits(used)

    def _start(self, file: EventFile, recorded: bool) -> None:
        before = file.is_recorded
        file.is_recorded = recorded or (before and self.is_armed)
        if self.is_armed:
            self.retarget()
            return
        try:
            self.arm()
        except OSError:
            file.is_recorded = before
            raise
        self.is_armed = True

    def _stop_unneeded(self) -> None:
        if self.is_armed and not self.used_files:
            self.disarm()
            self.is_armed = False

    def arm(self) -> None:
        """Start to produce the event. Raises OSError; then nothing has changed."""

    def retarget(self) -> None:
        """Follow a change of `used_files` while armed."""

    def disarm(self) -> None:
        """Stop producing the event."""

    def file_changed(self) -> None:
        """Follow a change of a file's filter or triggers."""


class EventRegistry:
    """The events, in the order of their creation."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], TraceEvent] = {}
        self._groups: dict[str, dict[str, TraceEvent]] = {}
        """The same by group and name; no group is empty."""
        self._unused_id = FIRST_DYNAMIC_ID
        """From here on no id has been used."""
        self.changes = 0
        """How often an event was added or removed."""
        self._returned_ids: list[int] = []
        """Ids below it that removed events had, as a heap."""
        self._left_records: dict[TraceArray, None] = {}
        self._reserved: dict[tuple[str, str], TraceEvent] = {}
        """Built-in events, which are not in the list of events."""

    def reserve(self, event: TraceEvent) -> None:
        """Keep the name of a built-in event."""
        self._reserved[event.group, event.name] = event

    def reserved(self) -> list[TraceEvent]:
        """The built-in events."""
        return list(self._reserved.values())

    def add(self, event: TraceEvent) -> None:
        """Register `event` with the lowest free id.

        Raises OSError(EEXIST) if its group has an event of that name, OSError(ENODEV) if no id is free.
        """
        with events_locked():
            self.add_permanent(event)

    def add_permanent(self, event: TraceEvent) -> None:
        """As `add`, for the first events of a process: without events_locked(), which would create the tracer."""
        key = (event.group, event.name)
        if key in self._events or key in self._reserved:
            raise OSError(
                errno.EEXIST, f"event {event.group}/{event.name} already exists; delete it or choose another name"
            )
        event.id = self._lowest_free_id()
        self.changes += 1
        event.removed = False
        self._events[key] = event
        self._groups.setdefault(event.group, {})[event.name] = event

    def _lowest_free_id(self) -> int:
        if self._returned_ids:
            return heappop(self._returned_ids)
        if self._unused_id == _IDS:
            raise OSError(errno.ENODEV, f"there are {len(self._events)} events, and no id is free; delete some")
        self._unused_id += 1
        return self._unused_id - 1

    def remove(self, event: TraceEvent) -> None:
        """Unregister an event."""
        with events_locked():
            del self._events[event.group, event.name]
            self.changes += 1
            if len(self._groups[event.group]) > 1:
                del self._groups[event.group][event.name]
            else:
                del self._groups[event.group]
            heappush(self._returned_ids, event.id)
            event.removed = True
            self._left_records |= {array: None for array, file in event.files.items() if file.ever_enabled}

    def empty_left_records(self) -> None:
        """Empty the trace arrays in which events that were removed since the last call have been enabled.

        Ids are reused: an old record would be read as one of the next event.
        """
        with events_locked():
            left, self._left_records = self._left_records, {}
            for array in left:
                array.empty()

    def find(self, group: str, name: str) -> TraceEvent | None:
        """The event `group`/`name`; None if there is none."""
        return self._events.get((group, name))

    def find_reserved(self, group: str, name: str) -> TraceEvent | None:
        """The built-in event `group`/`name`; None if there is none."""
        return self._reserved.get((group, name))

    def has_group(self, group: str) -> bool:
        """Whether a group has events."""
        return group in self._groups

    def groups(self) -> list[str]:
        """The groups that have events."""
        return list(dict.fromkeys(group for group, _ in list(self._events)))

    def events(self, group: str | None = None) -> list[TraceEvent]:
        """The events of a group, or all events, in the order of their creation."""
        return list((self._events if group is None else self._groups.get(group, {})).values())


event_registry = EventRegistry()
"""The events of this process."""


def trace_actions(array: TraceArray) -> TraceActions:
    """A trace array as triggers use it."""
    return _actions.setdefault(array, TraceActions(array, event_registry))


_actions: dict[TraceArray, TraceActions] = {}


def forget_array(array: TraceArray) -> None:
    """Remove the files of all events from a trace array that is being removed."""
    with events_locked():
        for event in [*event_registry.events(), *event_registry.reserved()]:
            event.leave(array)
        _actions.pop(array, None)


def enable_state(files: Sequence[EventFile]) -> str:
    """The text of an `enable` file for several events: 0, 1, X if they differ, ? if there is none.

    As system_enable_read() in kernel/trace/trace_events.c: an event whose triggers need its hits counts as enabled.
    """
    states = {file.is_on for file in files}
    if not states:
        return "?"
    return "X" if len(states) > 1 else str(int(states.pop()))


def set_all_enabled(files: Sequence[EventFile], on: bool) -> None:
    """Enable or disable every file's event, then raise the first OSError. Raises OSError(EINVAL) if there is none."""
    if not files:
        raise OSError(errno.EINVAL, "there is no event to enable or disable; define one first")
    first: OSError | None = None
    for file in files:
        try:
            file.set_enabled(on)
        except OSError as failed:
            first = first or failed
    if first is not None:
        raise first
