"""Entries and returns that were kept, read from the file of counts, and the calls that they are."""

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
    """An entry or a return. `time` in ticks; `value`: the return address, or what is returned."""

    time: int
    thread: int
    ip: int
    slot: int
    is_entry: bool
    value: int


@dataclass
class Call:
    """A call. `left`: when it returned, in ticks, or None if that was not seen; `depth`: recorded calls around it."""

    ip: int
    thread: int
    depth: int
    slot: int
    entered: int
    caller: int
    left: int | None = None
    result: int = 0
    inner: int = 0
    """How many calls began inside."""


class Kept(NamedTuple):
    """The events of a process, by time, and how many older ones were overwritten."""

    events: list[Event]
    lost: int


def read(counts: int, parts: Iterable[int]) -> Kept:
    """What the threads of a process have in their rings. `parts`: the numbers of its parts."""
    events: list[Event] = []
    lost = 0
    for number in parts:
        for row in _rows(counts, number):
            thread, _, head = _ROW.unpack(os.pread(counts, _ROW.size, row))
            lost += max(0, head - session.EVENTS)
            events += _ring(counts, row + session.EVENTS_AT, head, thread)
    return Kept(sorted(events), lost)


def _rows(counts: int, number: int) -> Iterator[int]:
    """Where the rows are that have been written to."""
    start = session.HEADER + number * session.PART + session.ROWS_AT
    found = {(low - start) // session.STRIDE for low, _ in used(counts, start, start + session.ROWS * session.STRIDE)}
    return (start + row * session.STRIDE for row in sorted(found))


def _ring(counts: int, start: int, head: int, thread: int) -> Iterator[Event]:
    data = os.pread(counts, min(head, session.EVENTS) * session.EVENT, start)
    for time, ip, slot, value in _EVENT.iter_unpack(data):
        if time:
            yield Event(time, thread, ip, slot & ~_KIND, slot & _KIND == _ENTER, value)


def calls(events: Iterable[Event]) -> Iterator[tuple[Call, bool]]:
    """(call, True) where one begins and (call, False) where it returns. One whose return was not seen is never left."""
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
