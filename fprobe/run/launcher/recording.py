"""Recording the probe events of attached processes to a trace.dat or to columns: `fprobe record -p`.

Their rings are in memory that this process maps, too.
"""

from __future__ import annotations

import os

from fprobe.export.columns.layout import origin_of
from fprobe.export.outcome import Outcome
from fprobe.export.recording import symbol_lines
from fprobe.export.trace_dat import TraceDat
from fprobe.export.trace_dat_sections import BufferMetadata, Metadata
from fprobe.run.launcher.attached import Attached, AttachedProcesses
from fprobe.run.launcher.probe_events import UNKNOWN_COMM, Comms, RingsOf
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.remote_columns import ColumnsFile
from fprobe.run.launcher.slot_pages import SlotPages
from fprobe.tracefs import tracefs
from ftrace.hit.ring_buffer.layout import PAGE_SIZE

_CLOCK = "local"


class RemoteRecording(Outcome):
    """Moves records of processes into a file: call `drain` repeatedly, and `finish` when they were detached.

    `compression`: of a trace.dat; None: the file is Parquet.

    Raises OSError if the file cannot be created: ELOOP for a symbolic link; ValueError if processes number events differently.
    """

    def __init__(self, path: str, processes: AttachedProcesses, compression: str | None) -> None:
        self._members = [_Member(each) for each in processes.members]
        self._readers: dict[tuple[int, int, int], SlotPages] = {}
        self._processes = processes
        self.file: TraceDat | ColumnsFile
        if compression is None:
            self.file = ColumnsFile(path, self._comm, self._metadata, self._edition)
        else:
            self.file = TraceDat(path, PAGE_SIZE, 1, compression, self._metadata())

    def drain(self, *, with_newest: bool = False) -> None:
        """Write the sub-buffers that are full."""
        if isinstance(self.file, ColumnsFile):
            self.file.learn()
        for at, member in enumerate(self._members):
            for number, ring in enumerate(member.rings.all()):
                for slot in ring.view.slots():
                    key = at, number, slot
                    reader = self._readers.setdefault(key, SlotPages(ring.view, slot, len(self._readers)))
                    self._write(reader, ring.pid, with_newest)

    def finish(self) -> None:
        """Write the remaining records and the metadata. Raises OSError."""
        self.drain(with_newest=True)
        if isinstance(self.file, ColumnsFile):
            self.file.finish(self.lost, [origin_of(each.pid, each.command) for each in self._found])
        else:
            self.dropped_pages = self.file.finish(self._metadata())

    @property
    def _found(self) -> list[Process]:
        return self._processes.results().processes

    def _comm(self, thread: int) -> str:
        names = (member.comms.find(thread) for member in self._members)
        return next((name for name in names if name != UNKNOWN_COMM), UNKNOWN_COMM)

    def _edition(self) -> int:
        """A number that changes when processes have reported something."""
        return sum(os.fstat(each.journal).st_size for each in self._processes.members)

    @property
    def hits(self) -> int:
        """Records in the file."""
        return sum(reader.records for reader in self._readers.values())

    @property
    def lost(self) -> int:  # type: ignore[override]
        """Records that were overwritten, or never written."""
        return sum(reader.lost for reader in self._readers.values())

    @property
    def size(self) -> str:
        """How much is in the file."""
        kib = f"{self.file.pages * PAGE_SIZE >> 10:,} KiB of records"
        return f"{self.file.rows:,} rows" if isinstance(self.file, ColumnsFile) else kib

    @property
    def unwritten(self) -> int:
        """See `Outcome`."""
        return self.file.unwritten if isinstance(self.file, ColumnsFile) else 0

    def _write(self, reader: SlotPages, pid: int, with_newest: bool) -> None:
        try:
            for page in reader.take(with_newest=with_newest) if self.failure is None else ():
                if isinstance(self.file, ColumnsFile):
                    self.file.add(reader.number, page.data, pid)
                else:
                    self.file.add(reader.number, page.data)
        except OSError as failed:
            self.fail(failed)

    def _metadata(self) -> Metadata:
        found = self._found
        stats = {each.number: f"entries: {each.records}\noverrun: {each.lost}\n" for each in self._readers.values()}
        symbols = {symbol: None for process in found for symbol in process.names.symbols()}
        return Metadata(
            header_page=tracefs.read("events/header_page"),
            header_event=tracefs.read("events/header_event"),
            formats=_formats(found),
            symbols=symbol_lines(list(symbols)),
            cmdlines="".join(member.comms.lines() for member in self._members),
            clocks=f"[{_CLOCK}]\n",
            buffers=[BufferMetadata("", _CLOCK, stats)],
        )


class _Member:
    """The memory of an attached process."""

    def __init__(self, attached: Attached) -> None:
        self.rings = RingsOf(attached.counts)
        self.comms = Comms(attached.counts)


def _formats(processes: list[Process]) -> dict[str, list[str]]:
    """The format files of each group. Raises ValueError if an event of a process has the number of another one elsewhere."""
    by_number: dict[int, tuple[str, str]] = {}
    for process in processes:
        for number, text in process.formats.items():
            if by_number.setdefault(number, text) != text:
                raise ValueError(
                    f"the events of process {process.pid} have other numbers than those of the others; record it alone"
                )
    found: dict[str, list[str]] = {}
    for group, content in by_number.values():
        found.setdefault(group, []).append(content)
    return found
