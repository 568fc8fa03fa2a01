"""Reading the records of calls that a process has written (ftrace.hit.call_records)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fprobe.calls.records import Event, event_of
from fprobe.run import session
from fprobe.run.launcher.call_events import CallEvents
from fprobe.run.launcher.probe_events import memory_file
from ftrace.ring_buffer.reader import of_slot
from ftrace.ring_buffer.view import RingView


def read_events(counts: int, parts: Iterable[int], leave_out: Collection[int] = ()) -> CallEvents:
    """The records of a process's threads in order of time, without those to `leave_out`. `parts`: the numbers of its parts."""
    events: list[Event] = []
    lost = 0
    for ring in filter(None, (ring_of(counts, number) for number in parts)):
        for slot in ring.slots():
            lost += ring.lost(slot)
            events += [event_of(record.stamp, record.data) for record in of_slot(slot, ring.pages(slot))]
    wanted = [event for event in events if event.thread not in leave_out]
    return CallEvents(sorted(wanted, key=lambda event: (event.time, event.thread)), lost)


def ring_of(counts: int, number: int) -> RingView | None:
    """The ring of a part; None if its process records no calls."""
    file = memory_file(counts, session.HEADER + number * session.PART + session.CALLS_AT)
    return RingView(file, 0, session.CALLS_ORDER) if file else None
