"""Calls, stacks and records of programs as rows of a Parquet file, written while they run: `fprobe run -o FILE.parquet`.

Columns are those of `fprobe.export.columns.layout`. The rings are read from the memory that processes share with this one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.export.columns import transposing
from fprobe.export.columns.layout import Columns, Origin, columns_for, description, origin_of, wall_clock_offset
from fprobe.export.columns.pages import Kinds, Located
from fprobe.export.columns.parquet import RowGroups, Sink, joined
from fprobe.export.columns.tables import function_and_module
from fprobe.export.formats import parse_format
from fprobe.report.tree import folded_stack
from fprobe.run.launcher.call_records import ring_of
from fprobe.run.launcher.flame import stacks
from fprobe.run.launcher.followed import FollowedProcesses
from fprobe.run.launcher.probe_events import Comms, Ring, RingsOf
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.process_rows import File, ProcessRows
from fprobe.run.launcher.report_selection import ReportSelection
from fprobe.run.launcher.results import Results
from fprobe.run.launcher.slot_pages import SlotPages
from sandbox.process.printable import utf8

if TYPE_CHECKING:
    import pyarrow

    from ftrace.ring_buffer.view import RingView

_CLOCK = "local"
_PAUSE = 0.005
"""Seconds between two looks at the rings: a thread that makes a million calls a second fills its part in some 60 ms."""
_ROWS = 1 << 15
"""Rows in a row group."""


def prepare() -> None:
    """Load what takes long, before the program begins: a thread's newest calls of some 60 ms fit into its part of the ring."""
    from fprobe.prototypes import described  # noqa: F401
    from sandbox.symbols import library_dwarf  # noqa: F401

    transposing.image()


class Memory(NamedTuple):
    """The file of counts and the journal of a program. `root`: see `Process`."""

    counts: int
    journal: int
    root: str = ""


class RunRows:
    """Writes rows inside the block `while_running`, and the rest in `finish`."""

    def __init__(self, output: int, programs: Iterable[Memory]) -> None:
        self._offset, self._located = wall_clock_offset(), Located()
        self._of_calls, self._of_events = Kinds(), Kinds()
        self._of_calls.know_calls()
        self._groups = RowGroups(Sink("", output))
        self._columns: Columns | None = None
        self._programs = [_Program(each, self) for each in programs]
        self._waiting: list[pyarrow.Table] = []
        self._error: Exception | None = None

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self._groups.rows

    @property
    def lost(self) -> int:
        """Entries, returns and records that were overwritten before they could be written, or never recorded."""
        return sum(program.lost for program in self._programs)

    @contextlib.contextmanager
    def while_running(self) -> Iterator[None]:
        """Write rows, in a thread, until the block ends."""
        ended = threading.Event()
        thread = threading.Thread(target=self._work, args=(ended,), name="fprobe-rows", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _work(self, ended: threading.Event) -> None:
        try:
            while not ended.wait(_PAUSE):
                self._drain(with_newest=False)
        except Exception as error:  # of this thread: `finish` raises it
            self._error = error

    def finish(self, found: Results, selection: ReportSelection, rate: float) -> None:
        """Write what is left, and the end. `rate`: ticks per nanosecond. Raises OSError; after a full disk the file is whole."""
        try:
            if self._error is None:
                self._drain(with_newest=True)
                for program in self._programs:
                    program.end()
                self._write_waiting()
                self._write_rows(_stack_rows(found.processes, selection, rate))
            origins = [origin for program in self._programs for origin in program.origins()]
            self._groups.finish(self.columns().schema, description(_CLOCK, self._offset, origins, self.lost))
        finally:
            self._groups.close()
        if (full := self._groups.failure) is not None:
            raise OSError(full.errno, f"{full.strerror}: {self._groups.unwritten:,} rows were not written")
        if self._error is not None:
            raise self._error

    def columns(self) -> Columns:
        """Those for the events that are known when the first row is written."""
        if self._columns is None:
            found = (text for program in self._programs for each in program.found for text in each.formats.values())
            self._columns = columns_for(parse_format(*text) for text in found)
        return self._columns

    def file_for(self, comms: Comms) -> File:
        """What the rows of a program's processes are written to."""
        kinds = self._of_calls, self._of_events
        return File(self.columns, self.add, comms.find, self._offset, *kinds, self._located)

    def add(self, *tables: pyarrow.Table) -> None:
        """Take rows."""
        self._waiting += tables
        if sum(each.num_rows for each in self._waiting) >= _ROWS:
            self._write_waiting()

    def _drain(self, *, with_newest: bool) -> None:
        for program in self._programs:
            program.drain(with_newest=with_newest)

    def _write_waiting(self) -> None:
        if self._waiting:
            tables, self._waiting = self._waiting, []
            self._groups.write(joined(tables))

    def _write_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        import pyarrow as pa

        if found := list(rows):
            self._groups.write(pa.Table.from_pylist(utf8(found), schema=self.columns().schema))


class _Program:
    """The processes of a program, and the rings that they write to."""

    def __init__(self, memory: Memory, whole: RunRows) -> None:
        self._memory, self._whole = memory, whole
        self._followed = FollowedProcesses(*memory)
        self._rings, self._file = RingsOf(memory.counts), whole.file_for(Comms(memory.counts))
        self._of_calls: dict[int, tuple[int, RingView] | None] = {}
        """By the number of a part: its process, and its ring of calls; None if nothing more comes there."""
        self._parts = set[int]()
        self._slots: dict[tuple[bool, int, int], SlotPages] = {}
        self._made: dict[int, ProcessRows] = {}
        self._origins: dict[int, Origin] = {}
        self._seen = set[int]()
        """Processes that have been seen in /proc: they have ended when they are there no more."""

    @property
    def found(self) -> Iterable[Process]:
        """Those that are known."""
        return self._followed.processes.values()

    @property
    def lost(self) -> int:
        return sum(each.lost for each in self._slots.values())

    def drain(self, *, with_newest: bool) -> None:
        """Write what the rings have. What a process that has ended is known by, and its space, are given up."""
        ended = {pid for pid in self._made if self._has_ended(pid)}  # before its last records are taken
        self._follow()
        for part, ring in self._of_calls.items():
            if ring is not None:
                self._take_calls(part, *ring, with_newest=with_newest or ring[0] in ended)
        for number, of_events in enumerate(self._rings.all()):
            if of_events.pid in self._made or of_events.pid not in self._seen:
                self._take_events(number, of_events, with_newest=with_newest or of_events.pid in ended)
        for pid in ended:
            self._made.pop(pid).end()
            self._of_calls = {part: None if ring and ring[0] == pid else ring for part, ring in self._of_calls.items()}

    def end(self) -> None:
        """Nothing follows."""
        for each in self._made.values():
            each.end()

    def origins(self) -> Iterator[Origin]:
        """The processes, as they were when they were first seen."""
        for process in self.found:
            known = self._origins[process.pid]
            yield known._replace(command=process.command or known.command)

    def _has_ended(self, pid: int) -> bool:
        if Path(f"/proc/{pid}").exists():
            self._seen.add(pid)
            return False
        return pid in self._seen  # else it is of another PID namespace, perhaps

    def _follow(self) -> None:
        for part in self._followed.update():
            if part.number not in self._parts:
                self._parts.add(part.number)
                self._seen.discard(part.pid)  # another one had the number
            if part.number not in self._of_calls and (ring := ring_of(self._memory.counts, part.number)) is not None:
                self._of_calls[part.number] = part.pid, ring
        for process in self.found:
            if process.pid not in self._origins:
                self._origins[process.pid] = origin_of(process.pid, process.command)

    def _take_calls(self, part: int, pid: int, view: RingView, *, with_newest: bool) -> None:
        for slot in view.slots():
            reader = self._reader(False, part, view, slot)
            self._rows(pid).take_calls(reader.number, reader.take(with_newest=with_newest))

    def _take_events(self, number: int, ring: Ring, *, with_newest: bool) -> None:
        for slot in ring.view.slots():
            reader = self._reader(True, number, ring.view, slot)
            taken = reader.take(with_newest=with_newest)
            self._whole.add(*self._rows(ring.pid).take_events(reader.number, taken))

    def _reader(self, is_of_events: bool, ring: int, view: RingView, slot: int) -> SlotPages:
        key = is_of_events, ring, slot
        return self._slots.setdefault(key, SlotPages(view, slot, len(self._slots)))

    def _rows(self, pid: int) -> ProcessRows:
        if pid not in self._made:
            self._made[pid] = ProcessRows(self._followed.of(pid), self._file)
        return self._made[pid]


def _stack_rows(processes: Iterable[Process], selection: ReportSelection, rate: float) -> Iterator[dict[str, Any]]:
    for process in processes:
        for stack in stacks([process], rate, selection):
            function, module = function_and_module(stack.frames[-1])
            text = folded_stack(function_and_module(frame)[0] for frame in stack.frames)
            yield {
                "kind": "stack", "stack": text, "calls": stack.calls, "self_ns": stack.value, "pid": process.pid,
                "function": function, "module": module or None,
            }  # fmt: skip
