"""Recorded calls of a run, shown as a tree or as a Perfetto trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fprobe.calls.call_values import CallValues
from fprobe.calls.records import Event
from fprobe.export.perfetto import PerfettoTrace
from fprobe.report.nesting import Call, Nesting, tracks_of
from fprobe.report.tree import HEADER, CallTree
from fprobe.run.launcher.names import Names


class CallEvents(NamedTuple):
    """The events of a process in order of time, and the number of those that were overwritten or never recorded."""

    events: list[Event]
    lost: int


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
        shown = self._values.arguments(call.ip, call.entry.values)
        return self._names.function(call.ip).called(shown)

    def result(self, call: Call[Event]) -> tuple[str, str]:
        assert call.leave is not None
        return self._values.result(call.ip, call.leave.value, call.leave.values)


def tree_lines(call_events: CallEvents, names: Names) -> Iterator[str]:
    """The lines of a tree of calls, like the output of the function_graph tracer."""
    if call_events.lost:
        yield f"# {call_events.lost:,} older events were overwritten: the ring buffer holds each thread's newest"
    yield HEADER
    tree = CallTree()
    yield from tree.lines(calls(call_events.events), CallWords(names))
    yield from tree.flush()


class RecordedProcess(NamedTuple):
    """A process and its recorded events."""

    pid: int
    command: Sequence[str]
    names: Names
    call_events: CallEvents


def perfetto_trace(recorded: Sequence[RecordedProcess]) -> bytes:
    """A trace for ui.perfetto.dev, with a track for each thread of each process, and others for calls that do not fit into it.

    Raises ModuleNotFoundError if the package `perfetto` is not installed.
    """
    trace = PerfettoTrace()
    for process in recorded:
        trace.process(process.pid, " ".join(process.command))
        for thread in sorted({event.thread for event in process.call_events.events}):
            trace.thread(process.pid, thread)
        steps = list(calls(process.call_events.events))
        tracks = tracks_of(steps)
        for call, begins in steps:
            where = process.pid, call.thread, tracks[call]
            if begins:
                trace.begin(call.entry.time, *where, str(process.names.function(call.ip)))
            elif call.ended is not None:
                trace.end(call.ended, *where)
    return trace.serialize()
