"""The calls of attached processes as lines, while they are made: `fprobe trace -p`.

Each process has a ring buffer, and nothing waits for a reader. An event is shown when it is older than the beginning of the
previous reading: then no older one of another thread can follow. A buffer holds more events than are written in a minute, so that
they are read as they are written, and writing ends when the processes are not wanted any more.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from fprobe.calls.records import Event, event_of
from fprobe.report.nesting import Nesting
from fprobe.report.tree import HEADER, CallTree
from fprobe.run.launcher.attached import Attached, AttachedProcesses
from fprobe.run.launcher.call_events import CallWords
from fprobe.run.launcher.call_records import ring_of
from fprobe.run.launcher.followed import FollowedProcesses
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.remarks import conclusion, shown_command, troubles
from ftrace.ring_buffer.reader import Follower
from ftrace.ring_buffer.view import RingView

_POLLING = 0.03
_AT_ONCE = 1000
"""Events that are written before it is asked whether more are wanted."""
Write = Callable[[Iterable[str]], None]


class _PendingEvent(NamedTuple):
    """An event and its process."""

    event: Event
    process: Process


def _time(pending: _PendingEvent) -> int:
    return pending.event.time


class _Ring:
    """The ring buffer of a process."""

    def __init__(self, view: RingView) -> None:
        self._view = view
        self._follower = Follower()
        self.lost = 0

    def events(self, until: float) -> Iterator[Event]:
        """The next events up to this time, in their order. Those that were overwritten before are counted as lost."""
        for record in self._follower.take(self._view, self._view.slots(), until):
            self.lost += record.lost
            yield event_of(record.stamp, record.data)


class _Followed(FollowedProcesses):
    """The processes of one attachment, and the rings of their calls."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached.counts, attached.journal, attached.root)
        self._rings: dict[int, tuple[int, _Ring]] = {}
        """By the number of its part, each with its process."""
        self._lost = 0

    def events(self, until: float) -> Iterator[_PendingEvent]:
        """The events of all threads up to this time, in their order."""
        for part in self.update():
            if part.number not in self._rings and (view := ring_of(self._counts, part.number)) is not None:
                self._rings[part.number] = part.pid, _Ring(view)
        return heapq.merge(*(self._of(pid, ring, until) for pid, ring in self._rings.values()), key=_time)

    def _of(self, pid: int, ring: _Ring, until: float) -> Iterator[_PendingEvent]:
        own = self.processes[pid].own_threads
        return (_PendingEvent(event, self.processes[pid]) for event in ring.events(until) if event.thread not in own)

    def lost(self) -> int:
        """How many events were overwritten since the last call."""
        before, self._lost = self._lost, sum(ring.lost for _, ring in self._rings.values())
        return self._lost - before


class LiveCalls:
    """Writes the calls of the processes as lines. `write`: writes lines, and passes them on at once."""

    def __init__(self, processes: AttachedProcesses, write: Write) -> None:
        self._processes, self._write = processes, write
        self._followed = [_Followed(each) for each in processes.members]
        self._nesting: Nesting[Event] = Nesting()
        self._tree, self._words = CallTree(), dict[int, CallWords]()
        self._shown = 0
        """The process whose calls were written last."""
        self._due: Iterator[_PendingEvent] = iter(())
        """Events that are to be written."""

    def follow(self) -> None:
        """Write the calls until the processes are not wanted any more."""
        self._write([HEADER])
        before = time.monotonic_ns()
        while self._processes.wait_until(time.monotonic() + _POLLING):
            now = time.monotonic_ns()
            self._due = self._events(before)
            if not self._write_due(lambda: self._processes.is_wanted):
                break
            before = now

    def finish(self, is_wanted: Callable[[], bool]) -> None:
        """Write the rest, when they were detached, unless it is not wanted."""
        is_whole = self._write_due(is_wanted)
        if is_whole:
            self._due = self._events(math.inf)
            is_whole = self._write_due(is_wanted)
        self._write(self._tree.flush())
        if not is_whole:
            self._write(["# interrupted: calls after these were recorded, and are not shown"])
        found = self._processes.results()
        is_empty = not any(process.calls for process in found.processes)
        remarks = [line for process in found.processes for line in troubles(process, found.told)]
        self._write([*remarks, *conclusion(found, is_empty=is_empty)])

    def _events(self, until: float) -> Iterator[_PendingEvent]:
        return heapq.merge(*(followed.events(until) for followed in self._followed), key=_time)

    def _write_due(self, is_wanted: Callable[[], bool]) -> bool:
        """Write the events that are due. Returns False as soon as they are not wanted; the rest stays due."""
        while due := [*itertools.islice(self._due, _AT_ONCE)]:
            for followed in self._followed:
                if lost := followed.lost():
                    self._write([f"# {lost:,} entries and returns were overwritten before they could be shown"])
            self._write(line for event, process in due for line in self._lines(event, process))
            if not is_wanted():
                return False
        return True

    def _lines(self, event: Event, process: Process) -> Iterator[str]:
        steps = list(self._nesting.steps([event]))
        if steps and process.pid != self._shown:
            yield from self._tree.flush()
            yield f"# process {process.pid}: {shown_command(process.command)}"
            self._shown = process.pid
        words = self._words.setdefault(process.pid, CallWords(process.names))
        yield from self._tree.lines(steps, words)
