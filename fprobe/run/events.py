"""Reads recorded entries and returns from the file of counts, and pairs them into calls."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fprobe.run import session
from sandbox.threads.counters import used

_EVENT = struct.Struct("<4Q")
_ROW = struct.Struct("<3Q")
_KIND = 3
_ENTER = 1


class Event(NamedTuple):
    """An entry or a return. `time`: in ticks; `slot`: where its return address is; `value`: that address, or the result."""

    time: int
    thread: int
    ip: int
    slot: int
    is_entry: bool
    value: int


@dataclass
class Call:
    """A call. `left`: time of its return in ticks, None if the return was not recorded; `depth`: number of recorded callers."""

    ip: int
    thread: int
    depth: int
    slot: int
    entered: int
    caller: int
    left: int | None = None
    result: int = 0
    inner: int = 0
    """Number of recorded calls that it made itself."""


class CallEvents(NamedTuple):
    """The events of a process in order of time, and the number of older events that were overwritten."""

    events: list[Event]
    lost: int


def read(counts: int, parts: Iterable[int]) -> CallEvents:
    """The events in the rings of a process's threads. `parts`: the numbers of the process's parts."""
    events: list[Event] = []
    lost = 0
    for number in parts:
        for row in _rows(counts, number):
            thread, _, head = _ROW.unpack(os.pread(counts, _ROW.size, row))
            lost += max(0, head - session.EVENTS)
            events += _ring(counts, row + session.EVENTS_AT, head, thread)
    return CallEvents(sorted(events), lost)


def _rows(counts: int, number: int) -> Iterator[int]:
    """The offsets of the rows that have been written to."""
    start = session.HEADER + number * session.PART + session.ROWS_AT
    found = {(low - start) // session.STRIDE for low, _ in used(counts, start, start + session.ROWS * session.STRIDE)}
    return (start + row * session.STRIDE for row in sorted(found))


def _ring(counts: int, start: int, head: int, thread: int) -> Iterator[Event]:
    data = os.pread(counts, min(head, session.EVENTS) * session.EVENT, start)
    for time, ip, slot, value in _EVENT.iter_unpack(data):
        if time:
            yield Event(time, thread, ip, slot & ~_KIND, slot & _KIND == _ENTER, value)


def calls(events: Iterable[Event]) -> Iterator[tuple[Call, bool]]:
    """(call, True) at the entry of a call, (call, False) at its return; there is no latter if the return was not recorded."""
    stacks: dict[int, list[Call]] = {}
    for event in events:
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1].slot < event.slot:
            stack.pop()
        if event.is_entry:
            for outer in stack[-1:]:
                outer.inner += 1
            call = Call(event.ip, event.thread, len(stack), event.slot, event.time, event.value)
            stack.append(call)
            yield call, True
        elif (returning := _of(stack, event)) is not None:
            del stack[stack.index(returning) :]
            returning.left, returning.result = event.time, event.value
            yield returning, False


def _of(stack: list[Call], event: Event) -> Call | None:
    return next((call for call in reversed(stack) if call.ip == event.ip and call.slot == event.slot), None)
