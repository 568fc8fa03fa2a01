"""TraceActions: the interface between triggers and a trace array."""

from __future__ import annotations

import contextlib
import ctypes
import errno
from collections.abc import Sequence
from typing import Protocol

from ftrace.core.runtime import runtime
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.events.builtin_records import TAKE_SNAPSHOT, SnapshotTarget, StackTarget
from ftrace.tracing.events.event_file import EventFile
from ftrace.tracing.events.event_mutex import after_unlocking, free_after_hits
from ftrace.tracing.events.filters.fields import EventField
from ftrace.tracing.events.triggers.interfaces import SYNTHETIC, NativeCall
from ftrace.tracing.instances.trace_array import TraceArray

_WORD = 8
_NOT_ALLOCATED = (b"*** SNAPSHOT NOT ALLOCATED ***\n", b"*** stopping trace here!   ***\n")


class Event(Protocol):
    """The interface of ftrace.tracing.events.registry.TraceEvent that triggers of other events use."""

    id: int
    references: int

    @property
    def fields(self) -> Sequence[EventField]: ...

    @property
    def generator(self) -> NativeCall: ...

    def file_in(self, array: TraceArray) -> EventFile: ...


class Events(Protocol):
    """The interface of the event registry."""

    def find(self, group: str, name: str) -> Event | None: ...

    def find_reserved(self, group: str, name: str) -> Event | None: ...


class TraceActions:
    """A trace array as triggers use it: implements `ftrace.tracing.events.triggers.interfaces.TraceInstance`."""

    def __init__(self, trace: TraceArray, events: Events) -> None:
        self._trace = trace
        self._events = events

    @property
    def tracing_on(self) -> int:
        """Address of the word tracing_on."""
        return self._trace.switch

    @property
    def stacktrace(self) -> NativeCall:
        """The call that records the stack of the hit."""
        unwind_tables().refresh()
        target = StackTarget.ctypes(self._trace.buffer.address, self._trace.switch)
        address = runtime().image.address("event_stacktrace_trigger")
        return NativeCall(address, ctypes.addressof(target), (target, self._trace.buffer))

    @property
    def snapshot(self) -> NativeCall:
        """The call that swaps the live ring and the spare ring."""
        address = runtime().image.address(TAKE_SNAPSHOT)
        records = [address.to_bytes(_WORD, "little") + text + b"\0" for text in _NOT_ALLOCATED]
        said = ctypes.create_string_buffer(b"".join(records))
        target = SnapshotTarget.ctypes(
            self._trace.buffer.address, self._trace.switch, ctypes.addressof(said), len(records[0])
        )
        return NativeCall(address, ctypes.addressof(target), (target, said, self._trace.buffer))

    @property
    def capture_stack(self) -> NativeCall:
        """The call that stores the stack of the hit."""
        unwind_tables().refresh()
        return NativeCall(runtime().image.address("event_capture_stack"))

    def find_event(self, group: str, name: str) -> EventFile | None:
        """The event's file; None if there is no such event."""
        event = self._events.find(group, name)
        return event.file_in(self._trace) if event is not None else None

    def match_event(self, group: str, name: str) -> EventFile | None:
        """The event's file, also of an event that cannot be enabled; None if there is no such event."""
        event = self._events.find(group, name) or self._events.find_reserved(group, name)
        return event.file_in(self._trace) if event is not None else None

    def find_synthetic(self, name: str) -> Sequence[EventField] | None:
        """The fields of a synthetic event; None if there is none of that name."""
        event = self._events.find(SYNTHETIC, name)
        return event.fields if event is not None else None

    def refer_to_synthetic(self, name: str, by: int) -> None:
        """Count users of a synthetic event, which cannot be deleted while there are any. `by`: 1 or -1."""
        event = self._events.find(SYNTHETIC, name)
        if event is not None:
            event.references += by

    def generator(self, name: str) -> NativeCall:
        """The call that records a synthetic event."""
        event = self._events.find(SYNTHETIC, name)
        assert event is not None
        return event.generator

    @property
    def ring_buffer(self) -> int:
        """Address of the trace array's RingBuffer."""
        return self._trace.buffer.address

    def set_clock(self, name: str) -> None:
        """Select the clock of time stamps. Raises OSError(EINVAL)."""
        try:
            self._trace.buffer.clock = name
        except ValueError as wrong:
            raise OSError(errno.EINVAL, str(wrong)) from None
        after_unlocking(self._have_tracer_follow)  # it takes trace_types_lock, which comes before event_mutex

    def _have_tracer_follow(self) -> None:
        with contextlib.suppress(OSError):  # which leaves no tracer, as after a write to trace_clock
            self._trace.update_tracing()

    def arm_snapshot(self) -> None:
        """Allocate the spare ring. Raises OSError."""
        self._trace.buffer.allocate_snapshot()

    def disarm_snapshot(self) -> None:
        """Does nothing: the spare ring is kept, since it may hold a snapshot."""

    def condition_snapshot(self, on: bool) -> None:
        """Let only one histogram take snapshots, or end that. Raises OSError: EBUSY if one does."""
        if on:
            self._trace.check_snapshot()
            self.arm_snapshot()
        self._trace.snapshot_is_conditional = on

    def log_error(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append to error_log."""
        self._trace.error_log.add(subsystem, message, command, position)

    def free_after_hits(self, used: object) -> None:
        """Keep an object until no hit uses it any more."""
        free_after_hits(used)
