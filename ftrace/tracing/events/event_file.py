"""An event in a trace array: whether it is recorded there, its filter and its triggers. struct trace_event_file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ftrace.core.runtime import runtime
from ftrace.hit.events.event_state import EventTarget
from ftrace.tracing.events.filters.compiled import CompiledFilter, compile_filter
from ftrace.tracing.events.filters.filter_file import EventFilter
from ftrace.tracing.events.filters.parser import Filter
from ftrace.tracing.events.triggers.interfaces import TraceInstance
from ftrace.tracing.events.triggers.trigger_file import EventTriggers
from ftrace.tracing.instances.as_task import recording_task
from ftrace.tracing.probe_args.layout import COMMON_SIZE, Field

if TYPE_CHECKING:
    from ftrace.tracing.instances.trace_array import TraceArray


class Producer(Protocol):
    """The interface of ftrace.tracing.events.registry.TraceEvent that an event's file uses."""

    group: str
    name: str
    id: int

    @property
    def fields(self) -> Sequence[Field]: ...

    @property
    def is_armed(self) -> bool: ...

    def set_enabled(self, on: bool, file: EventFile | None = None) -> None: ...

    def hold(self, file: EventFile | None = None) -> None: ...

    def release(self, file: EventFile | None = None) -> None: ...

    def free_after_hits(self, used: object) -> None: ...

    def file_changed(self) -> None: ...


class EventFile:
    """One event in one trace array. `actions`: the trace array as triggers use it. Callers hold event_mutex."""

    def __init__(self, event: Producer, trace: TraceArray, actions: TraceInstance) -> None:
        self._event = event
        self._trace = trace
        self._native: Any = EventTarget.ctypes()
        self.holders = 0
        """The number of triggers and commands that need its hits, even while it is disabled."""
        self.ever_enabled = False
        """Whether hits may have been recorded."""
        self.triggers = EventTriggers(self, actions)
        self._native.triggers = self.triggers.table_address
        self.filter = EventFilter(event.fields, trace.error_log, self._use_filter)
        self._compiled: CompiledFilter | None = None
        self.used_filter: Filter | None = None
        """The filter of its hits."""
        self.directory: object = None
        """What shows it among the files (tracefs.event_files). It refers to this object: they go together."""

    @property
    def group(self) -> str:
        """The event's group."""
        return self._event.group

    @property
    def name(self) -> str:
        """The event's name."""
        return self._event.name

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of its records, without the common fields."""
        return self._event.fields

    @property
    def target(self) -> int:
        """Address of its EventTarget, for handlers. Creates the trace array's ring buffer if there is none."""
        self._native.buffer = self._trace.buffer.address
        self._native.tracing_on = self._trace.switch
        self._native.tasks = self._trace.event_tasks.address
        self._native.judging = self._trace.judging
        return ctypes.addressof(self._native)

    @property
    def is_recorded(self) -> bool:
        """Whether hits are recorded; otherwise they only run triggers."""
        return bool(self._native.recording)

    @is_recorded.setter
    def is_recorded(self, on: bool) -> None:
        self._native.recording = int(on)

    @property
    def recording(self) -> int:
        """Address of the word that `is_recorded` reads."""
        return ctypes.addressof(self._native) + EventTarget.offset("recording")

    def hold(self) -> None:
        """Have the event produced for a trigger, even while it is disabled. Raises OSError."""
        self._event.hold(self)

    def release(self) -> None:
        """Undo one `hold`."""
        self._event.release(self)

    def changed(self) -> None:
        """Apply a change of its filter or its triggers."""
        self._event.file_changed()

    @property
    def trace(self) -> TraceArray:
        """The trace array."""
        return self._trace

    @property
    def enabled(self) -> bool:
        """Whether hits are recorded."""
        return self._event.is_armed and self.is_recorded

    @property
    def is_on(self) -> bool:
        """Whether hits are handled: they are recorded, or run triggers (EVENT_FILE_FL_ENABLED)."""
        return self.enabled or self.holders > 0

    def set_enabled(self, on: bool) -> None:
        """Start or stop recording hits. Raises OSError."""
        self._event.set_enabled(on, self)

    @property
    def state(self) -> str:
        """The text of the file `enable`: 1 or 0, and * if triggers need its hits."""
        return f"{int(self.enabled)}{'*' if self.holders else ''}"

    def record(self, data: bytes) -> None:
        """Record an event made by Python, as a hit would. `data`: the record after the common fields."""
        if not (self.is_recorded or self.holders):
            return
        recording_task()
        record = ctypes.create_string_buffer(bytes(COMMON_SIZE) + data + bytes(-len(data) % 4))
        size = len(record) - 1
        runtime().image.call("event_record_made", self.target, self._event.id, ctypes.addressof(record), size, 0, 0, 0)

    def _use_filter(self, filter_: Filter | None) -> None:
        old, self._compiled = self._compiled, compile_filter(filter_) if filter_ else None
        self._native.filter = self._compiled.address if self._compiled else 0
        self.used_filter = filter_
        self.changed()
        if old is not None:
            self._event.free_after_hits(old)
