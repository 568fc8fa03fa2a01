"""Recorded calls of a run: read from the file of counts, shown as a tree or as a Perfetto trace."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from fprobe.export.perfetto import PerfettoTrace
from fprobe.report.nesting import Call, Nesting
from fprobe.report.tree import HEADER, CallTree
from fprobe.run import session
from fprobe.run.launcher.call_values import CallValues
from fprobe.run.launcher.names import Names
from fprobe.run.launcher.value_records import Read, Values, read_values
from sandbox.threads.counters import used

EVENT = struct.Struct("<4Q")
"""An event in a ring: see `event_of`."""
ROW = struct.Struct("<3Q")
"""The beginning of a row: its thread, the calls it had no space for, and the number of its events."""
_KIND = 3
_VALUES_SHIFT = 32
_ENTER, _LEAVE_BELOW = 1, 3


class Event(NamedTuple):
    """An entry or a return. `time`: in ticks; `place`: on the shadow stack; `value`: the return address, or the register ax.

    `is_newest`: at a return, no later call of the thread is in progress. `values`: None if none were recorded, or they are lost.
    """

    time: int
    thread: int
    ip: int
    place: int
    is_entry: bool
    is_newest: bool
    value: int
    values: Values | None = None
    has_values: bool = False


class CallEvents(NamedTuple):
    """The events of a process in order of time, and the number of older events that were overwritten."""

    events: list[Event]
    lost: int


def read_events(counts: int, parts: Iterable[int], leave_out: Collection[int] = ()) -> CallEvents:
    """The events in the rings of a process's threads, without those to `leave_out`. `parts`: the numbers of its parts."""
    events: list[Event] = []
    lost = 0
    for number in parts:
        for row in rows(counts, number):
            thread, _, head = ROW.unpack(os.pread(counts, ROW.size, row))
            if thread in leave_out:
                continue
            lost += max(0, head - session.EVENTS)
            events += _ring(counts, row, head, thread)
    return CallEvents(sorted(events, key=_by_time), lost)


def _by_time(event: Event) -> tuple[int, ...]:
    return event.time, event.thread, event.ip, event.place


def rows(counts: int, number: int) -> Iterator[int]:
    """The offsets of the rows of a part that have been written to."""
    start = session.HEADER + number * session.PART + session.ROWS_AT
    found = {(low - start) // session.STRIDE for low, _ in used(counts, start, start + session.ROWS * session.STRIDE)}
    return (start + row * session.STRIDE for row in sorted(found))


def _ring(counts: int, row: int, head: int, thread: int) -> Iterator[Event]:
    data = os.pread(counts, min(head, session.EVENTS) * session.EVENT, row + session.EVENTS_AT)
    ring = b""

    def read(at: int, size: int) -> bytes:
        nonlocal ring
        ring = ring or os.pread(counts, session.VALUES * 8, row + session.VALUES_AT)
        return ring[at : at + size]

    for raw in EVENT.iter_unpack(data):
        if raw[0]:
            yield event_of(raw, thread, read)


def event_of(raw: tuple[int, int, int, int], thread: int, read: Read) -> Event:
    """The event of a thread: its time, its function, its place on the shadow stack with its kind, and its value.

    `read`: reads the thread's ring of values.
    """
    time, ip, place, value = raw
    kind, number = place & _KIND, place >> _VALUES_SHIFT
    values = read_values(read, number, time) if number else None
    place = (place & (1 << _VALUES_SHIFT) - 1) >> 2
    return Event(time, thread, ip, place, kind == _ENTER, kind != _LEAVE_BELOW, value, values, bool(number))


def calls(events: Iterable[Event]) -> Iterator[tuple[Call[Event], bool]]:
    """(call, True) at the entry of a call, (call, False) at its end."""
    nesting: Nesting[Event] = Nesting()
    return nesting.steps(events)


class CallWords:
    """The texts of calls of a process."""

    def __init__(self, names: Names) -> None:
        self._names, self._values = names, CallValues(names)

    def name(self, call: Call[Event]) -> str:
        return str(self._names.function(call.ip))

    def entry(self, call: Call[Event]) -> str:
        shown = self._values.arguments(call.ip, call.entry.values) if call.entry.has_values else ""
        return self._names.function(call.ip).called(shown)

    def result(self, call: Call[Event]) -> tuple[str, str]:
        assert call.leave is not None
        return self._values.result(call.ip, call.leave.value, call.leave.values)


def tree_lines(call_events: CallEvents, names: Names, rate: float) -> Iterator[str]:
    """The lines of a tree of calls, like the output of the function_graph tracer. `rate`: ticks per nanosecond."""
    if call_events.lost:
        yield f"# {call_events.lost:,} older events were overwritten: a thread's ring holds the newest"
    yield HEADER
    tree = CallTree()
    yield from tree.lines(calls(call_events.events), CallWords(names), rate)
    yield from tree.flush()


class RecordedProcess(NamedTuple):
    """A process and its recorded events."""

    pid: int
    command: Sequence[str]
    names: Names
    call_events: CallEvents


def perfetto_trace(recorded: Sequence[RecordedProcess], first: tuple[int, int], rate: float) -> bytes:
    """A trace for ui.perfetto.dev, with a track for each thread of each process.

    `first`: ticks, and CLOCK_MONOTONIC in nanoseconds at the same moment; `rate`: ticks per nanosecond.
    Raises ModuleNotFoundError if the package `perfetto` is not installed.
    """
    trace = PerfettoTrace()
    for process in recorded:
        trace.process(process.pid, " ".join(process.command))
        for thread in sorted({event.thread for event in process.call_events.events}):
            trace.thread(process.pid, thread)
        for call, begins in calls(process.call_events.events):
            event = call.entry if begins else call.leave
            if event is None:
                continue
            time = first[1] + round((event.time - first[0]) / rate)
            if begins:
                trace.begin(time, process.pid, call.thread, str(process.names.function(call.ip)))
            else:
                trace.end(time, process.pid, call.thread)
    return trace.serialize()
