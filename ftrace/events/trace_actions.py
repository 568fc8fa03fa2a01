"""TraceActions: the interface between triggers and a trace array."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from typing import Protocol

from ftrace.events.event_file import EventFile
from ftrace.events.event_mutex import free_after_hits
from ftrace.events.filters.fields import EventField
from ftrace.events.hit.builtin_records import KERNEL_STACK, TAKE_SNAPSHOT, SnapshotTarget, StackTarget
from ftrace.events.trace_array import TraceArray
from ftrace.events.triggers.interfaces import SYNTHETIC, NativeCall, Origin
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.runtime import runtime
from ftrace.unwind.code_map import unwind_tables

_COMMON, _WORD = 8, 8
_TEXT = 256
_NOT_ALLOCATED = (b"*** SNAPSHOT NOT ALLOCATED ***\n", b"*** stopping trace here!   ***\n")


class Event(Protocol):
    """The interface of ftrace.events.registry.TraceEvent that triggers of other events use."""

    id: int
    references: int

    @property
    def fields(self) -> Sequence[EventField]: ...

    @property
    def used_files(self) -> Sequence[EventFile]: ...

    def file_in(self, array: TraceArray) -> EventFile: ...


class Events(Protocol):
    """The interface of the event registry."""

    def find(self, group: str, name: str) -> Event | None: ...

    def find_reserved(self, group: str, name: str) -> Event | None: ...


class TraceActions:
    """A trace array as triggers use it: implements `ftrace.events.triggers.interfaces.TraceInstance`."""

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

    def synthetic_files(self, name: str) -> Sequence[EventFile]:
        """A synthetic event in the trace arrays that record it or have triggers of it."""
        event = self._events.find(SYNTHETIC, name)
        return event.used_files if event is not None else ()

    def record_stack(self, origin: Origin) -> None:
        """Record the stack of the hit that generated an event, while recording is on."""
        if self._trace.tracing_on:
            addresses = b"".join(address.to_bytes(_WORD, "little") for address in origin.stack)
            data = len(origin.stack).to_bytes(_WORD, "little") + addresses
            self._trace.buffer.write(KERNEL_STACK, data, origin.thread, origin.timestamp)

    @property
    def ring_buffer(self) -> int:
        """Address of the trace array's RingBuffer."""
        return self._trace.buffer.address

    def generate(self, name: str, values: Sequence[int | bytes], origin: Origin) -> None:
        """Record a synthetic event, subject to its filter and triggers. `origin`: the hit that caused it."""
        event = self._events.find(SYNTHETIC, name)
        if event is None:
            return
        data = synthetic_record(event.fields, values)
        saved_cmdlines.save(origin.thread, origin.comm.decode("utf-8", "surrogateescape"))
        for file in event.used_files:
            file.record(data[_COMMON:], origin)

    def set_clock(self, name: str) -> None:
        """Select the clock of time stamps. Raises OSError(EINVAL)."""
        try:
            self._trace.buffer.clock = name
        except ValueError as wrong:
            raise OSError(errno.EINVAL, str(wrong)) from None
        self._trace.update_tracing()

    def snapshot_at(self, timestamp: int) -> None:
        """Take a snapshot as it would have been at a past time."""
        self._trace.buffer.snapshot_at(timestamp)

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


def synthetic_record(fields: Sequence[EventField], values: Sequence[int | bytes]) -> bytes:
    """A synthetic event's record, with common fields of 0. Text of any length follows the fields."""
    fixed = max((field.offset + max(field.size, _WORD) for field in fields), default=_COMMON)
    made, tail = bytearray(fixed), b""
    for field, value in zip(fields, values, strict=True):
        if isinstance(value, bytes) and field.type.startswith("__data_loc"):
            text = _stack(value) if "long[" in field.type else value.partition(b"\0")[0] + b"\0"
            made[field.offset : field.offset + _WORD] = (len(text) << 16 | fixed + len(tail)).to_bytes(_WORD, "little")
            tail += text
        elif isinstance(value, bytes):
            text = value.partition(b"\0")[0][: field.size - 1]
            end = field.offset + _TEXT
            made.extend(bytes(max(0, end - len(made))))
            made[field.offset : field.offset + len(text)] = text
        else:
            made[field.offset : field.offset + field.size] = (value % (1 << 8 * field.size)).to_bytes(
                field.size, "little"
            )
    return bytes(made) + tail


def _stack(addresses: bytes) -> bytes:
    """A stack as trace_stack() stores it: the number of addresses, then the addresses."""
    count = next((at for at in range(0, len(addresses), _WORD) if not any(addresses[at : at + _WORD])), len(addresses))
    return (count // _WORD).to_bytes(_WORD, "little") + addresses[:count]
