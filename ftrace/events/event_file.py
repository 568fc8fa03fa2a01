"""An event in a trace array: whether it is recorded there, and its filter. struct trace_event_file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftrace.events.error_log import error_log
from ftrace.events.event_state import Target
from ftrace.events.filters.compiled import CompiledFilter, compile_filter
from ftrace.events.filters.filter_file import EventFilter
from ftrace.events.filters.parser import Filter
from ftrace.probe_args.layout import Field
from ftrace.runtime import runtime

if TYPE_CHECKING:
    from ftrace.events.registry import TraceEvent
    from ftrace.events.trace_array import TraceArray


class EventFile:
    """One event in one trace array. Callers hold event_mutex."""

    def __init__(self, event: TraceEvent, trace: TraceArray) -> None:
        self._event = event
        self._trace = trace
        self._native: Any = Target.ctypes()
        self._no_triggers = ctypes.c_uint64()
        self._native.triggers = ctypes.addressof(self._no_triggers)
        self.filter = EventFilter(event.fields, error_log, self._use_filter)
        self._compiled: CompiledFilter | None = None

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
        """Those of its records, without the common ones."""
        return self._event.fields

    @property
    def target(self) -> int:
        """Address of its Target, for handlers; the trace array has a ring buffer from now on."""
        self._native.buffer = self._trace.buffer.address
        self._native.tracing_on = self._trace.switch
        return ctypes.addressof(self._native)

    @property
    def is_recorded(self) -> bool:
        """Whether hits are recorded; if not they only run triggers."""
        return bool(self._native.recording)

    @is_recorded.setter
    def is_recorded(self, on: bool) -> None:
        self._native.recording = int(on)

    def _use_filter(self, filter_: Filter | None) -> None:
        old, self._compiled = self._compiled, compile_filter(filter_) if filter_ else None
        self._native.filter = self._compiled.address if self._compiled else 0
        if old is not None:
            runtime().quiesce()
