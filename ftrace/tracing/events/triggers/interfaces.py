"""The interfaces that triggers need: of their own event, of other events, and of the trace instance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ftrace.tracing.events.filters.fields import EventField

SYNTHETIC = "synthetic"
"""The group of synthetic events."""


class Triggers(Protocol):
    """An event's triggers, as triggers of other events use them."""

    @property
    def table_address(self) -> int:
        """Address of the word that holds the address of the event's TriggerTable."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Carry out a write to the trigger file. Raises OSError."""


class EventFile(Protocol):
    """An event in a trace instance (struct trace_event_file)."""

    @property
    def group(self) -> str:
        """The event's group (its system)."""

    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> Sequence[EventField]:
        """The fields of its records, without the common fields."""

    @property
    def triggers(self) -> Triggers: ...

    @property
    def recording(self) -> int:
        """Address of a 64-bit word: 1 while hits are recorded, 0 while they are not (SOFT_DISABLED)."""

    @abstractmethod
    def hold(self) -> None:
        """Keep the event armed and undeletable, even while disabled (soft mode). Calls are counted. Raises OSError."""

    @abstractmethod
    def release(self) -> None:
        """Undo one `hold`."""

    @abstractmethod
    def changed(self) -> None:
        """Apply a change of its triggers."""


@dataclass(frozen=True)
class NativeCall:
    """A native function `void (u64 argument, void *record, u64 length, StackPoint *point)` and its first argument.

    `keep`: objects that must live as long.
    """

    address: int
    argument: int = 0
    keep: object = None


class TraceInstance(Protocol):
    """A trace instance (struct trace_array), as triggers use it."""

    @property
    def tracing_on(self) -> int:
        """Address of a 64-bit word: 1 while recording is on, else 0."""

    @property
    def stacktrace(self) -> NativeCall:
        """The call that records the stack of the calling thread."""

    @property
    def snapshot(self) -> NativeCall:
        """The call that takes a snapshot."""

    @property
    def capture_stack(self) -> NativeCall:
        """The call that stores the calling thread's return addresses, innermost first, in the `length` bytes at `record`."""

    @abstractmethod
    def find_synthetic(self, name: str) -> Sequence[EventField] | None:
        """The fields of a synthetic event; None if there is none of that name."""

    @abstractmethod
    def refer_to_synthetic(self, name: str, by: int) -> None:
        """Count users of a synthetic event, which cannot be deleted while there are any. `by`: 1 or -1."""

    @property
    def ring_buffer(self) -> int:
        """Address of the RingBuffer whose clock gives time stamps; 0: there is none."""

    @abstractmethod
    def generator(self, name: str) -> NativeCall:
        """The call that records a synthetic event. `record` has a `ftrace.hit.events.operations.Value` for each field."""

    @abstractmethod
    def set_clock(self, name: str) -> None:
        """Select the clock of time stamps; this empties the buffer. Raises OSError(EINVAL)."""

    @abstractmethod
    def arm_snapshot(self) -> None:
        """Allocate the snapshot buffer. Raises OSError."""

    @abstractmethod
    def disarm_snapshot(self) -> None:
        """Undo one `arm_snapshot`."""

    @abstractmethod
    def condition_snapshot(self, on: bool) -> None:
        """Let one histogram alone take snapshots, or end that: tracing_snapshot_cond_enable(). Raises OSError(EBUSY)."""

    @abstractmethod
    def find_event(self, group: str, name: str) -> EventFile | None:
        """The event of that name, unless it cannot be enabled; None if there is none."""

    @abstractmethod
    def match_event(self, group: str, name: str) -> EventFile | None:
        """The same, also of the group ftrace: what a histogram's action can match (__find_event_file())."""

    @abstractmethod
    def log_error(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append to error_log, with a caret under character `position` of the command."""

    @abstractmethod
    def free_after_hits(self, used: object) -> None:
        """Keep a replaced object until no hit can use it. May return before that."""
