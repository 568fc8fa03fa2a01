"""Records of probe events of a process of the program, as text and as objects for JSON."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from fprobe.export.formats import parse_format
from fprobe.export.records import lines, objects
from fprobe.run import rings
from fprobe.run.names import Names
from fprobe.run.results import Process
from ftrace.ring_buffer.reader import Record, of_slot

_BY_TIME = attrgetter("stamp", "slot")


class _Symbols:
    def __init__(self, names: Names) -> None:
        self.describe = names.describe
        self.name = names.name


class RecordedEvents:
    """The records of a process, which may have ended. `comm`: comm(tid) returns the name of a thread."""

    def __init__(self, process: Process, found: Sequence[rings.Recorded], comm: Callable[[int], str]) -> None:
        self.formats = {number: parse_format(*text) for number, text in process.formats.items()}
        self.symbols = _Symbols(process.names)
        self.clock = found[0].clock
        self.comm = comm
        self._rings = [each.ring for each in found]

    def records(self) -> Iterator[Record]:
        """The records of all threads, merged by time."""
        each_slot = (of_slot(slot, ring.pages(slot)) for ring in self._rings for slot in ring.slots())
        return heapq.merge(*each_slot, key=_BY_TIME)

    @property
    def lost(self) -> int:
        """Number of records that were overwritten or dropped."""
        return sum(ring.lost(slot) for ring in self._rings for slot in ring.slots())

    def lines(self) -> Iterator[str]:
        """The records as in the kernel's file `trace`; a last line says how many were lost, if any."""
        yield from lines(self)
        if self.lost:
            yield f"# {self.lost:,} older or interrupted events were lost"

    def objects(self) -> list[dict[str, Any]]:
        """An object for each record."""
        return list(objects(self))


def read(counts: int, processes: Sequence[Process]) -> dict[int, RecordedEvents]:
    """The recorded events of each process, by process id."""
    comm = rings.comm_of(counts)
    of_process: dict[int, list[rings.Recorded]] = {}
    for each in rings.read(counts):
        of_process.setdefault(each.pid, []).append(each)
    return {each.pid: RecordedEvents(each, of_process[each.pid], comm) for each in processes if each.pid in of_process}
