"""Probe events from Python: their definition, recording, and records.

    with fprobe.event("p:reads vfs_read count=%dx", filter="count > 4096") as reads:
        module["demo_main"](5)
        for record in reads.records():
            print(record["count"])

All operations go through the files of tracefs (fprobe.tracefs). Records go to a separate trace instance.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fprobe.export.formats import EventFormat, parse_format
from fprobe.tracefs import tracefs
from ftrace.ring_buffer.reader import Follower
from ftrace.tracing.events import dynevent
from ftrace.tracing.events.event_mutex import events_locked
from ftrace.tracing.events.probe_event import Probe
from ftrace.tracing.instances.cmdlines import saved_cmdlines
from ftrace.tracing.instances.error_log import errors_heard, with_caret
from ftrace.tracing.probe_args.errors import HintedError
from ftrace.tracing.tracefs.trace_files import InstanceDirectory
from sandbox.process import fork

if TYPE_CHECKING:
    from ftrace.ring_buffer.pages import Block
    from ftrace.ring_buffer.reader import Record
    from ftrace.tracing.events.probe_event import ProbeEvent
    from ftrace.tracing.instances.trace_array import TraceArray

log = logging.getLogger("fprobe")

_POLL = 0.01
"""Seconds between two checks of the buffer: a hit does not wake the reader."""
_COMMON = ("event", "time", "tid", "comm", "lost")


def define(definition: str) -> list[Probe]:
    """Define an event. Returns its probe. Raises OSError with a caret under the error."""
    with events_locked():  # what other threads define is not ours
        before = set(dynevent.dynamic_events())
        _write("dynamic_events", definition, append=True)
        made = [each for each in dynevent.dynamic_events() if each not in before]
    probes = [each for each in made if isinstance(each, Probe)]
    if not probes:
        raise OSError(errno.EINVAL, f"{definition!r} does not define a probe; give a line p, r or f")
    return probes


def _write(path: str, text: str, append: bool = False) -> None:
    explained(lambda: tracefs.write(path, text, append=append), text)


def explained(call: Callable[[], None], command: str) -> None:
    """Make the call. If it raises OSError, add what error_log reports for `command`: the message, the text, and a caret."""
    with errors_heard() as found:
        try:
            call()
        except OSError as refused:
            number, reason = refused.errno or errno.EINVAL, refused.strerror or str(refused)
            shown, position = command.strip(), None
            if found:
                reason, shown, position = found[0].message, found[0].command, found[0].position
            hint = refused.hint if isinstance(refused, HintedError) else ""
            raise OSError(number, with_caret(reason, shown, position, hint)) from None


class Event:
    """Probe events that are recorded into a trace instance of their own; at most 15 can be attached at once.

    They are defined and recorded inside a `with` block, or between `attach` and `detach`.

    A record is a dict: `event`, `time` (nanoseconds of the buffer's clock), `tid`, `comm`, `lost` (how many records of its
    thread are missing just before it), and the arguments by name: integers, texts (None if memory could not be read), lists.
    """

    def __init__(self, definitions: Sequence[str], filter: str | None, trigger: Sequence[str]) -> None:
        self.definitions = tuple(definitions)
        self.filter = filter
        self.triggers = tuple(trigger)
        self._probes: list[Probe] = []
        self._kept: list[Probe] = []
        """Those that could not be deleted when it was detached, as others used them."""
        self._formats: dict[int, EventFormat] = {}
        self._follower = Follower()
        self._pending: deque[Record] = deque()
        self._left: list[Record] | None = None
        self._array: TraceArray | None = None
        self._counts = (0, 0, 0)
        self._told: set[str] = set()
        self._changing = fork.renew(threading.RLock())
        """Held while it is attached or detached. Only tried: who comes second does not wait."""
        self._reading = fork.renew(threading.RLock())
        """Held while records are read from the buffer, and while the buffer is replaced or given up."""

    def __repr__(self) -> str:
        state = f"{self.hits} hits" if self.attached else "not attached"
        return f"<Event {'; '.join(self.definitions)}: {state}>"

    @property
    def probes(self) -> tuple[Probe, ...]:
        """The probes of the definitions, while it is attached."""
        return tuple(self._probes)

    # -- attaching ------------------------------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """Whether the events are defined now."""
        return bool(self._probes)

    def attach(self) -> Event:
        """Define the events and record them.

        Raises OSError with the kernel's errno for a wrong definition, filter or trigger; the message includes the kernel's, if it
        has one, and a caret. Nothing is defined then. Raises OSError(EBUSY) if they are attached already, or if another thread
        is attaching or detaching them.
        """
        if not self._changing.acquire(blocking=False):
            raise OSError(errno.EBUSY, "another thread is attaching or detaching the event")
        try:
            self._attach()
        finally:
            self._changing.release()
        return self

    def _attach(self) -> None:
        if self._probes:
            raise OSError(errno.EBUSY, "the event is already attached; detach it first, or make another one")
        self._undefine()
        try:
            for definition in self.definitions:
                self._probes += define(definition)
            made = _instance()
            with self._reading:
                self._array = made
                self._formats = {event.id: parse_format(event.group, event.format()) for event in self._events}
                self._left, self._pending, self._follower = None, deque(), Follower()
            self._start()
        except BaseException:
            self._remove_instance()
            self._undefine()
            raise

    def disable(self) -> None:
        """Stop recording; the events stay defined."""
        self._set_enabled(False)

    def detach(self) -> None:
        """Stop recording, and delete the events. Their records can still be read.

        Does nothing if they are not attached, or if another thread is attaching or detaching them. Raises OSError(EBUSY), as
        dyn_event_release() in the kernel, while an event is enabled in another instance, or a trigger or filter command uses it:
        it is not recorded here any more, but stays defined until `detach` is called again; and while a file of the events'
        instance is open: then they stay attached.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._detach()
        finally:
            self._changing.release()

    def _detach(self) -> None:
        if self._probes:
            for sentence in self.absences():
                log.warning("%s", sentence)
            self.disable()
            self._counts = self.hits, self.missed, self.lost
            with self._reading:
                self._left = list(self._recorded())
                self._take_new()
            self._remove_instance()
        self._undefine()

    def __enter__(self) -> Event:
        return self.attach()

    def __exit__(self, *_: object) -> None:
        self.detach()

    # -- records --------------------------------------------------------------------------------------------------

    @property
    def hits(self) -> int:
        """Hits of the probes, including those that the filter rejects, as in `kprobe_profile`."""
        return sum(probe.hits for probe in self._probes) if self._probes else self._counts[0]

    @property
    def array(self) -> TraceArray:
        """The trace array that they are recorded in. Raises OSError(ENODEV) if they are not attached."""
        if self._array is None:
            raise OSError(errno.ENODEV, "the events are not attached; read this before they are detached")
        return self._array

    @property
    def instance(self) -> str:
        """The directory of that trace array in tracefs. Raises OSError(ENODEV) if they are not attached."""
        return f"instances/{self.array.name}"

    @property
    def missed(self) -> int:
        """Hits whose handler was not called."""
        return sum(probe.misses for probe in self._probes) if self._probes else self._counts[1]

    def absences(self) -> list[str]:
        """A sentence for each probe that could not be hit, as its code has not been loaded; each sentence is returned once."""
        found = {
            f"{probe.name} was attached to nothing: {why}": None for probe in self._probes if (why := probe.absence)
        }
        new = [sentence for sentence in found if sentence not in self._told]
        self._told.update(new)
        return new

    @property
    def can_be_hit(self) -> bool:
        """Whether the code of any of the probes is loaded."""
        return any(not probe.absence for probe in self._probes)

    @property
    def lost(self) -> int:
        """Records that were overwritten or dropped before they were read."""
        with self._reading:
            return self._array.buffer.lost() if self._array is not None else self._counts[2]

    @property
    def formats(self) -> list[EventFormat]:
        """The events, with the fields of their records."""
        return list(self._formats.values())

    def records(self) -> list[dict[str, Any]]:
        """The records so far that have not been overwritten, oldest first. They are not consumed."""
        with self._reading:
            return [self._decoded(record) for record in self._recorded()]

    def follow(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the records as they arrive. Ends after `timeout` seconds without one (None: never), or at detach.

        Several threads may follow: each record goes to one of them. Raises ValueError for a negative `timeout`.
        """
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout is {timeout}; it must be 0 or more seconds, or None")
        deadline = None
        while True:
            was_attached = self.attached  # detaching adds the last records before it changes this
            record = self._next()
            if record is not None:
                deadline = None
                yield record
                continue
            now = time.monotonic()
            deadline = now + timeout if deadline is None and timeout is not None else deadline
            if not was_attached or (deadline is not None and now >= deadline):
                return
            time.sleep(_POLL)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.follow()

    def text(self) -> str:
        """The records so far as the lines of the kernel's file `trace`. Raises OSError(ENODEV) if it is not attached."""
        lines = tracefs.read(f"{self.instance}/trace").splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("#"))

    def arrays(self) -> dict[str, list[Block]]:
        """The records so far as numpy arrays, by event name: views of copied sub-buffers, thread by thread.

        A block has `slot`, `stamps` (u64) and `events`, a structured array whose fields are those of the event. Raises
        ModuleNotFoundError without numpy, OSError(ENODEV) if it is not attached.
        """
        buffer = self.array.buffer
        return {each.name: list(buffer.arrays(each.id, each.dtype)) for each in self._formats.values()}

    # -- implementation -------------------------------------------------------------------------------------------

    @property
    def _events(self) -> list[ProbeEvent]:
        return list(dict.fromkeys(probe.event for probe in self._probes))

    def _start(self) -> None:
        for event in self._events:
            if self.filter is not None:
                _write(f"{self._directory(event)}/filter", self.filter)
            for trigger in self.triggers:
                _write(f"{self._directory(event)}/trigger", trigger, append=True)
        self._set_enabled(True)

    def _directory(self, event: ProbeEvent) -> str:
        return f"{self.instance}/events/{event.group}/{event.name}"

    def _set_enabled(self, on: bool) -> None:
        """All record from one moment on, and until one: else some calls have an entry and no return, or the other way round."""
        tracefs.write(f"{self.instance}/tracing_on", "0")
        for event in self._events:
            tracefs.write(f"{self._directory(event)}/enable", str(int(on)))
        if on:
            tracefs.write(f"{self.instance}/tracing_on", "1")

    def _remove_instance(self) -> None:
        """Remove the trace array, whose records nobody reads meanwhile. Raises OSError(EBUSY); it is kept then."""
        with self._reading:
            array, self._array = self._array, None
        try:
            if array is not None:
                tracefs.rmdir(f"instances/{array.name}")
        except OSError:
            self._array = array
            raise

    def _undefine(self) -> None:
        """Delete the definitions. Raises OSError(EBUSY) for those that others use."""
        left, self._probes = [*self._kept, *self._probes], []
        self._kept = dynevent.release(left)
        if self._kept:
            names = " and ".join(dict.fromkeys(f"{probe.group}/{probe.name}" for probe in self._kept))
            raise OSError(
                errno.EBUSY,
                f"{names} cannot be deleted: enabled in another instance, or used by a trigger or a filter command; "
                "end that, and detach again. Nothing is recorded here any more",
            )

    def _next(self) -> dict[str, Any] | None:
        """The oldest record that was not followed yet; None if there is none. Only then is the buffer read."""
        with self._reading:
            if not self._pending:
                self._take_new()
            return self._decoded(self._pending.popleft()) if self._pending else None

    def _take_new(self) -> None:
        if self._array is not None:
            self._pending += self._array.buffer.follow(self._follower)

    def _recorded(self) -> Iterator[Record]:
        return self._array.buffer.records() if self._array is not None else iter(self._left or ())

    def _decoded(self, record: Record) -> dict[str, Any]:
        kind, tid = self._formats[record.common.type], record.common.pid
        common = (kind.name, record.stamp, tid, saved_cmdlines.find(tid), record.lost)
        return dict(zip(_COMMON, common, strict=True)) | kind.values(record.data)


_numbers = itertools.count(1)


def _instance() -> TraceArray:
    """A new trace array, independent of other recordings. Raises OSError(ENOMEM) if there are too many."""
    name = f"fprobe.event-{next(_numbers)}"
    tracefs.mkdir(f"instances/{name}")
    node = tracefs.find(f"instances/{name}")
    assert isinstance(node, InstanceDirectory)
    return node.array


def event(*definitions: str, filter: str | None = None, trigger: str | Sequence[str] = ()) -> Event:
    """Probe events, each defined by a line of the kernel's language: `p`, `r` or `f` (docs/events.md).

    `filter`: the text for the events' `filter` files. `trigger`: one or several lines for their `trigger` files. The events
    are defined and recorded inside a `with` block. Raises ValueError without a definition; entering the block raises OSError
    as `Event.attach` does.

        with fprobe.event("r:results vfs_read $retval:s64") as results:
            module["demo_main"](5)
            print(results.hits, results.records())
    """
    if not definitions:
        raise ValueError("event() needs at least one definition, such as 'p:reads vfs_read count=%dx'")
    triggers = [trigger] if isinstance(trigger, str) else list(trigger)
    return Event(definitions, filter, triggers)


__all__ = ["Event", "event"]
