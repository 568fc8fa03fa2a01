"""What triggers need of the event that they are on, of other events, and of the trace instance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ftrace.events.filters.fields import EventField


class Triggers(Protocol):
    """The triggers of an event, as those of other events use them."""

    @property
    def table_address(self) -> int:
        """Address of the word that holds the address of the event's TriggerTable."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Carry out what is written to the trigger file. Raises OSError."""


class EventFile(Protocol):
    """An event in a trace instance (struct trace_event_file)."""

    @property
    def group(self) -> str:
        """The group of the event (its system)."""

    @property
    def name(self) -> str: ...

    @property
    def fields(self) -> Sequence[EventField]:
        """Those of its records, without the common ones."""

    @property
    def triggers(self) -> Triggers: ...

    @property
    def recording(self) -> int:
        """Address of a word of 64 bits: 1 while hits are recorded, 0 while they are not (SOFT_DISABLED)."""

    @abstractmethod
    def hold(self) -> None:
        """Keep it armed and undeletable, though it may be disabled: soft mode, once more. Raises OSError."""

    @abstractmethod
    def release(self) -> None:
        """Undo one `hold`."""

    @abstractmethod
    def changed(self) -> None:
        """Its triggers are others than before."""


@dataclass(frozen=True)
class NativeCall:
    """A native function `void (u64 argument, void *record, u64 length, StackPoint *point)` and what it is called with first.

    `keep`: what has to live as long.
    """

    address: int
    argument: int = 0
    keep: object = None


class Origin(NamedTuple):
    """The hit that generated an event: its thread, that thread's name, and when, by the trace clock."""

    thread: int
    comm: bytes
    timestamp: int


class TraceInstance(Protocol):
    """A trace instance (struct trace_array), as far as triggers act on it."""

    @property
    def tracing_on(self) -> int:
        """Address of a word of 64 bits: 1 while records are kept, else 0."""

    @property
    def stacktrace(self) -> NativeCall:
        """Records the stack of the thread that calls it."""

    @property
    def snapshot(self) -> NativeCall:
        """Takes a snapshot."""

    @property
    def capture_stack(self) -> NativeCall:
        """Stores return addresses of the calling thread, innermost first: `record` is where to, `length` how many bytes."""

    @abstractmethod
    def find_synthetic(self, name: str) -> Sequence[EventField] | None:
        """The fields of the synthetic event of that name; None if there is none."""

    @abstractmethod
    def refer_to_synthetic(self, name: str, by: int) -> None:
        """Count how many histograms generate the synthetic event, which cannot be deleted meanwhile. `by`: 1 or -1."""

    @property
    def ring_buffer(self) -> int:
        """Address of the RingBuffer whose clock hits are stamped by; 0: there is none."""

    @abstractmethod
    def generate(self, name: str, values: Sequence[int | bytes], origin: Origin) -> None:
        """Record a synthetic event."""

    @abstractmethod
    def set_clock(self, name: str) -> None:
        """Take time stamps by another clock from now on; the buffer is empty then. Raises OSError(EINVAL)."""

    @abstractmethod
    def arm_snapshot(self) -> None:
        """Allocate the snapshot buffer. Raises OSError."""

    @abstractmethod
    def disarm_snapshot(self) -> None:
        """Undo one `arm_snapshot`."""

    @abstractmethod
    def find_event(self, group: str, name: str) -> EventFile | None:
        """The event of that name that can be enabled."""

    @abstractmethod
    def log_error(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append to error_log, with a caret under character `position` of the command."""

    @abstractmethod
    def let_go(self, used: object) -> None:
        """Keep what was replaced until no hit can still use it. May return before that."""
