"""Probe events from Python: definitions, their records, and what becomes of both at the end.

    with fprobe.event("p:reads vfs_read count=%dx", filter="count > 4096") as reads:
        module["demo_main"](5)
        for record in reads.records():
            print(record["count"])

Everything goes through the files of tracefs (fprobe.tracefs).
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fprobe.export.formats import EventFormat, parse_format
from fprobe.tracefs import tracefs
from ftrace.events import dynevent
from ftrace.events.error_log import error_log
from ftrace.events.probe_event import Probe
from ftrace.events.registry import events_locked
from ftrace.events.trace_array import global_trace
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.output.trace import line_format
from ftrace.ring_buffer.following import Follower

if TYPE_CHECKING:
    from ftrace.events.probe_event import ProbeEvent
    from ftrace.ring_buffer.arrays import Block
    from ftrace.ring_buffer.reader import Record

_POLL = 0.01
"""Seconds between two looks at the buffer: hits wake nobody."""
_COMMON = ("event", "time", "tid", "comm", "lost")


class Event:
    """Definitions of probe events. Inside a `with` block, or between `attach` and `detach`, they are defined and recorded.

    A record is a dict: `event`, `time` (nanoseconds of the buffer's clock), `tid`, `comm`, `lost` (records of its thread that
    are missing just before it), and the arguments by their names: integers, texts (None where memory could not be read), lists.
    """

    def __init__(self, definitions: Sequence[str], filter: str | None, trigger: Sequence[str]) -> None:
        self.definitions = tuple(definitions)
        self.filter = filter
        self.triggers = tuple(trigger)
        self._probes: list[Probe] = []
        self._formats: dict[int, EventFormat] = {}
        self._follower = Follower()
        self._pending: deque[Record] = deque()
        self._left: list[Record] | None = None
        self._counts: tuple[int, int] = (0, 0)

    def __repr__(self) -> str:
        state = f"{self.hits} hits" if self.attached else "not attached"
        return f"<Event {'; '.join(self.definitions)}: {state}>"

    # -- for how long ---------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether the events are defined now."""
        return bool(self._probes)

    def attach(self) -> Event:
        """Define the events and record them.

        Raises OSError, with the kernel's errno and, where the kernel has one, its message with a caret under the definition,
        the filter or the trigger; nothing is defined then. Raises OSError(EBUSY) if they are attached.
        """
        if self._probes:
            raise OSError(errno.EBUSY, "the event is attached already: detach it first, or make another one")
        try:
            for definition in self.definitions:
                self._probes += _define(definition)
            self._start()
        except BaseException:
            self._delete()
            raise
        return self

    def disable(self) -> None:
        """Stop recording; the events stay defined."""
        self._set_enabled(False)

    def detach(self) -> None:
        """Stop recording, and delete the events. What was recorded can still be read. Does nothing if they are not attached."""
        if self._probes:
            self.disable()
            self._counts = self.hits, self.missed
            self._left = list(self._recorded())
            self._pending += (record for record in self._new() if self._is_own(record))
            self._delete()

    def __enter__(self) -> Event:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- what was recorded ----------------------------------------------------------------------------------------

    @property
    def hits(self) -> int:
        """How often the probes were hit, whatever the filter says: `kprobe_profile`."""
        return sum(probe.hits for probe in self._probes) if self._probes else self._counts[0]

    @property
    def missed(self) -> int:
        """Hits at which a probe could not run."""
        return sum(probe.misses for probe in self._probes) if self._probes else self._counts[1]

    @property
    def lost(self) -> int:
        """Records of the whole buffer that were overwritten or dropped before anybody read them."""
        buffer = global_trace().buffer
        return buffer.overrun() + sum(buffer.stats(slot).dropped for slot in buffer.slots())

    @property
    def formats(self) -> list[EventFormat]:
        """The events, with the fields of their records."""
        return list(self._formats.values())

    def records(self) -> list[dict[str, Any]]:
        """What was recorded so far and not overwritten, oldest first. Nothing is consumed."""
        return [self._decoded(record) for record in self._recorded()]

    def follow(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Each record once, as it comes. Ends when none came for `timeout` seconds (None: never), or when it is detached.

        Raises ValueError for a negative `timeout`.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout is {timeout}; it must be 0 or more seconds, or None")
        deadline = None
        while True:
            if self.attached:
                self._pending += (record for record in self._new() if self._is_own(record))
            if self._pending:
                deadline = None
                yield self._decoded(self._pending.popleft())
                continue
            now = time.monotonic()
            deadline = now + timeout if deadline is None and timeout is not None else deadline
            if not self.attached or (deadline is not None and now >= deadline):
                return
            time.sleep(_POLL)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.follow()

    def text(self) -> str:
        """The records so far as the lines of the kernel's file `trace`."""
        if not self.attached and self._left:
            raise OSError(errno.ENODEV, "the events are deleted: ask for their text before they are detached")
        shown = line_format(global_trace())
        return "".join(shown.line(record) for record in self._recorded())

    def arrays(self) -> dict[str, list[Block]]:
        """The records so far as numpy arrays, by the events' names: views of copied sub-buffers, thread by thread.

        A block has `slot`, `stamps` (u64) and `events`, a structured array whose fields are those of the event. Raises
        ModuleNotFoundError without numpy, OSError(ENODEV) if the events are deleted.
        """
        if not self.attached:
            raise OSError(errno.ENODEV, "the events are deleted: ask for arrays before they are detached")
        buffer = global_trace().buffer
        return {each.name: list(buffer.arrays(each.id, each.dtype)) for each in self._formats.values()}

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _events(self) -> list[ProbeEvent]:
        return list(dict.fromkeys(probe.event for probe in self._probes))

    def _start(self) -> None:
        self._formats = {event.id: parse_format(event.group, event.format()) for event in self._events}
        self._left, self._pending = None, deque()
        self._new()
        for event in self._events:
            directory = f"events/{event.group}/{event.name}"
            if self.filter is not None:
                _write(f"{directory}/filter", self.filter)
            for trigger in self.triggers:
                _write(f"{directory}/trigger", trigger, append=True)
        self._set_enabled(True)

    def _set_enabled(self, on: bool) -> None:
        for event in self._events:
            tracefs.write(f"events/{event.group}/{event.name}/enable", str(int(on)))

    def _delete(self) -> None:
        for event in self._events:
            event.set_enabled(False)
            with events_locked():
                event.file.triggers.remove_all()
        for probe in reversed(self._probes):
            tracefs.write("dynamic_events", f"-:{probe.group}/{probe.name}", append=True)
        self._probes = []

    def _new(self) -> list[Record]:
        return global_trace().buffer.follow(self._follower)

    def _is_own(self, record: Record) -> bool:
        return record.common.type in self._formats

    def _recorded(self) -> Iterator[Record]:
        held = global_trace().buffer.records() if self.attached else iter(self._left or ())
        return (record for record in held if self._is_own(record))

    def _decoded(self, record: Record) -> dict[str, Any]:
        kind, tid = self._formats[record.common.type], record.common.pid
        common = (kind.name, record.stamp, tid, saved_cmdlines.find(tid), record.lost)
        return dict(zip(_COMMON, common, strict=True)) | kind.values(record.data)


def _define(definition: str) -> list[Probe]:
    """Define an event; the probe that it made. Raises OSError with a caret under what is wrong."""
    before = set(dynevent.dynamic_events())
    _write("dynamic_events", definition, append=True)
    made = [each for each in dynevent.dynamic_events() if each not in before]
    probes = [each for each in made if isinstance(each, Probe)]
    if not probes:
        raise OSError(errno.EINVAL, f"{definition!r} defines no probe; it must be a line p, r or f")
    return probes


def _write(path: str, text: str, append: bool = False) -> None:
    explained(lambda: tracefs.write(path, text, append=append), text)


def explained(call: Callable[[], None], command: str) -> None:
    """Make the call. Raises its OSError with what error_log says of `command`: the message, the text, and a caret under it."""
    with error_log.heard() as found:
        try:
            call()
        except OSError as refused:
            number, reason = refused.errno or errno.EINVAL, refused.strerror or str(refused)
            shown, position = command.strip(), None
            if found:
                reason, shown, position = found[0].message, found[0].command, found[0].position
            caret = f"\n  {' ' * position}^" if position is not None else ""
            raise OSError(number, f"{reason}\n  {shown}{caret}") from None


def event(*definitions: str, filter: str | None = None, trigger: str | Sequence[str] = ()) -> Event:
    """Probe events, each defined by a line of the kernel's language: `p`, `r` or `f` (docs/events.md).

    `filter`: what the events' `filter` files get; `trigger`: one or several for their `trigger` files. They are defined and
    recorded inside a `with` block. Raises ValueError without a definition; entering raises OSError as `Event.attach` does.

        with fprobe.event("r:results vfs_read $retval:s64") as results:
            module["demo_main"](5)
            print(results.hits, results.records())
    """
    if not definitions:
        raise ValueError("event() needs at least one definition, such as 'p:reads vfs_read count=%dx'")
    triggers = [trigger] if isinstance(trigger, str) else list(trigger)
    return Event(definitions, filter, triggers)


__all__ = ["Event", "event"]
