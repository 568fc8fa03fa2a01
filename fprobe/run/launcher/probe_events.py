"""Records of probe events of the program: read from the memory of its processes, shown as text or as objects for JSON.

Each process, also the child of a fork, has its own memory for pages. All processes share one table of thread names.
"""

from __future__ import annotations

import ctypes
import heapq
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from fprobe.export.formats import parse_format
from fprobe.export.records import lines, objects
from fprobe.export.trace_dat_reader import Instance, merged
from fprobe.run import session
from fprobe.run.launcher.names import Names
from fprobe.run.launcher.process import Process
from ftrace.hit.ring_buffer import comms
from ftrace.hit.ring_buffer.layout import Geometry
from ftrace.ring_buffer.reader import Record, of_slot
from ftrace.ring_buffer.view import MemoryFile, RingView
from ftrace.tracing.binary_printf import unknown_text
from ftrace.tracing.instances.cmdlines import cmdline
from sandbox.memory import mappings

_BY_TIME = attrgetter("stamp", "slot")
UNKNOWN_COMM = "<...>"
_FILE = struct.Struct("<QQ")


class Ring(NamedTuple):
    """The recorded events of a process. `clock`: the name of the clock."""

    pid: int
    view: RingView
    clock: str


class _Symbols:
    def __init__(self, names: Names) -> None:
        self.describe = names.describe
        self.name = names.name


class RecordedEvents:
    """The records of a process, which may have ended. `comm`: comm(tid) returns the name of a thread."""

    def __init__(self, process: Process, found: Sequence[Ring], comm: Callable[[int], str]) -> None:
        self.formats = {number: parse_format(*text) for number, text in process.formats.items()}
        self.symbols = _Symbols(process.names)
        self.instances = [Instance(clock=found[0].clock)]
        self.comm = comm
        self.text = unknown_text  # a program has its texts in its own memory
        self._rings = [each.view for each in found]

    def merged(self) -> Iterator[tuple[Instance, Record]]:
        """The records of all threads, merged by time."""
        each_slot = (of_slot(slot, ring.pages(slot)) for ring in self._rings for slot in ring.slots())
        return merged([(self.instances[0], heapq.merge(*each_slot, key=_BY_TIME))])

    @property
    def has_records(self) -> bool:
        """Whether anything was recorded, even if it has been overwritten."""
        return bool(self.lost) or any(True for _ in self.merged())

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


def read_records(counts: int, processes: Sequence[Process]) -> dict[int, RecordedEvents]:
    """The recorded events of each process, by process id."""
    comm = Comms(counts).find
    of_process: dict[int, list[Ring]] = {}
    for each in RingsOf(counts).all():
        of_process.setdefault(each.pid, []).append(each)
    return {each.pid: RecordedEvents(each, of_process[each.pid], comm) for each in processes if each.pid in of_process}


class RingsOf:
    """The rings in a file of counts, each mapped once."""

    def __init__(self, counts: int) -> None:
        self._counts = counts
        self._found: dict[int, list[Ring]] = {}

    def all(self) -> list[Ring]:
        """Those that exist now: processes that are forked add theirs."""
        for number in range(session.rings_taken(self._counts)):
            if not self._found.get(number):
                self._found[number] = list(self._mapped(number))
        return [ring for number in sorted(self._found) for ring in self._found[number]]

    def _mapped(self, number: int) -> Iterator[Ring]:
        file = memory_file(self._counts, session.RINGS_AT + number * session.RING)
        if file is None:
            return
        for entry in file.rings():
            if entry.name == session.INSTANCE:
                yield Ring(file.pid, RingView(file, entry.number, entry.order), entry.clock)


class Comms:
    """The names of threads in a file of counts."""

    def __init__(self, counts: int) -> None:
        self._address = mappings.map_shared(counts, session.COMMS_AT, comms.SIZE)

    def find(self, thread: int) -> str:
        """The name of a thread; `<...>` if it is not known."""
        return comms.find_comm(self._address, thread) or UNKNOWN_COMM

    def lines(self) -> str:
        """As in the file saved_cmdlines."""
        return "".join(cmdline(thread, self.find(thread)) for thread in comms.threads(self._address))


def memory_file(counts: int, at: int) -> MemoryFile | None:
    """The memory of a ring buffer in the file of counts; None if its process was killed before it had begun it."""
    magic, pages = _FILE.unpack(os.pread(counts, _FILE.size, at))
    if not magic:
        return None
    size = Geometry(pages).size
    address = mappings.map_shared(counts, at, size)
    return MemoryFile(memoryview((ctypes.c_char * size).from_address(address)).cast("B"))
