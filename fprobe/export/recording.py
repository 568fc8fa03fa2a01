"""Recording a trace array's buffer to a trace.dat while a program runs."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

from fprobe.export.formats import EventFormat
from fprobe.export.trace_dat import Metadata, TraceDat
from fprobe.export.trace_dat_reader import records_of
from fprobe.tracefs import tracefs
from ftrace.events.trace_array import TraceArray, global_trace
from ftrace.output import symbols
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.ring_buffer.buffer import Buffer
from ftrace.ring_buffer.reader import Record
from ftrace.runtime import RUNTIME
from sandbox.symbols.table import symbol_table

_BY_TIME = attrgetter("stamp", "slot")


class LiveSymbols:
    """The symbols of this process."""

    describe = staticmethod(symbols.with_offset)
    name = staticmethod(symbols.plain)


class Arriving:
    """A source of the records that have arrived and may be shown: no older one can follow from another slot.

    `formats`: events by their type numbers.
    """

    def __init__(self, buffer: Buffer, formats: Mapping[int, EventFormat]) -> None:
        self.clock = buffer.clock
        self.formats = formats
        self.symbols = LiveSymbols()
        self.comm = saved_cmdlines.find
        self._buffer = buffer
        self._held: list[Record] = []
        self._until: int | None = 0

    def begin_reading(self) -> None:
        """Called before the slots are read, one after the other: records after this moment wait for the next reading."""
        self._until = self._buffer.now

    def add(self, slot: int, page: bytes) -> None:
        """Take the records of a sub-buffer."""
        self._held += records_of(slot, page)

    def end(self) -> None:
        """Nothing follows: show all records."""
        self._until = None

    def records(self) -> Iterator[Record]:
        """The records that may be shown, each once, in order of time."""
        self._held.sort(key=_BY_TIME)
        due = [record for record in self._held if self._until is None or record.stamp <= self._until]
        del self._held[: len(due)]
        return iter(due)


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHOWN = 16
"""Sub-buffers of each slot that are passed on by one call."""
END_MARK = "$end"
"""A symbol at the end of another one: readers take everything up to the next symbol for a part of the previous one."""


class Recording:
    """Moves the records of a buffer into a file: call `drain` repeatedly, and `finish` at the end.

    `array`: the top-level trace array by default. `arriving`: gets every record at the next `drain`, also of sub-buffers that
    are not full; the file then has more of them. Raises OSError if the file cannot be created: ELOOP for a symbolic link.
    """

    def __init__(self, path: str, array: TraceArray | None = None, arriving: Arriving | None = None) -> None:
        self._array = array or global_trace()
        self._arriving = arriving
        self._directory = f"instances/{self._array.name}/" if self._array.name else ""
        self._buffer = self._array.buffer
        self._buffer.clear()
        self.file = TraceDat(path, self._buffer.subbuf_kb * 1024)
        self.failure: OSError | None = None
        """The error that ended writing, such as a full disk."""
        self.lost = 0
        """Records that were overwritten or dropped before they could be written."""
        self.dropped_pages = 0
        """Sub-buffers that were dropped to make room for the rest of the file."""

    def drain(self) -> bool:
        """Write the full sub-buffers. Returns whether there were any."""
        before, slots = self.file.pages, self._buffer.slots()
        if self._arriving is not None:
            self._arriving.begin_reading()
            self._move(page for slot in slots for page in self._newest(slot))
            return self.file.pages > before + len(slots)
        for slot in slots:
            if self.failure is None:
                self._drain_slot(slot)
        return self.file.pages > before

    def _drain_slot(self, slot: int) -> None:
        try:
            self._buffer.drain(self.file.descriptor, slot)
        except OSError as failed:
            self._fail(failed)
        finally:
            self.file.account(slot)

    def finish(self, stop: Callable[[], None] = lambda: None) -> None:
        """Call `stop` to end the recording, then write the remaining records and the metadata. Raises OSError."""
        stop()
        stats = {slot: tracefs.read(f"{self._directory}per_cpu/cpu{slot}/stats") for slot in self._buffer.slots()}
        self.lost = self._buffer.lost()
        self._move(self._buffer.raw_pages())
        if self._arriving is not None:
            self._arriving.end()
        self.dropped_pages = self.file.finish(self._metadata(stats))

    def _move(self, pages: Iterator[tuple[int, bytes]]) -> None:
        """Write these sub-buffers, and pass them on."""
        try:
            for slot, page in pages if self.failure is None else ():
                self.file.add(slot, page)
                if self._arriving is not None:
                    self._arriving.add(slot, page)
        except OSError as failed:
            self._fail(failed)

    def _newest(self, slot: int) -> Iterator[tuple[int, bytes]]:
        """Consume sub-buffers of a slot, full or not: few, because a program may make records faster than they are shown."""
        for _ in range(_SHOWN):
            page = self._buffer.take_page(slot)
            if page is None:
                return
            yield slot, page

    @property
    def text(self) -> str:
        """A summary: how much was written, and what is missing."""
        parts = [f"{self.lost:,} records lost"] if self.lost else []
        if self.failure is not None:
            parts.append(f"{self.failure.strerror}: records after that are missing")
        if self.dropped_pages:
            parts.append(
                f"{self.dropped_pages} pages of the newest records were dropped to make space for the end of the file"
            )
        return f"{self.kib:,} KiB of records; {'; '.join(parts) or 'nothing lost'}"

    @property
    def progress(self) -> str:
        """How much has been recorded so far."""
        return f"{self._buffer.written():,} records, {self.kib:,} KiB written, {self._buffer.lost():,} lost"

    @property
    def kib(self) -> int:
        """KiB of records in the file."""
        return self.file.pages * self.file.page_size >> 10

    def _metadata(self, stats: dict[int, str]) -> Metadata:
        return Metadata(
            header_page=tracefs.read("events/header_page"),
            header_event=tracefs.read("events/header_event"),
            formats=dict(_formats()),
            symbols=kallsyms(),
            printk_formats=tracefs.read("printk_formats"),
            cmdlines=saved_cmdlines.read(),
            clock=self._buffer.clock,
            clocks=tracefs.read(f"{self._directory}trace_clock"),
            stats=stats,
        )

    def _fail(self, failed: OSError) -> None:
        if failed.errno not in _DISK_FULL:
            raise failed
        self.failure = failed


def _formats() -> Iterator[tuple[str, list[str]]]:
    for system in tracefs.listdir("events"):
        if tracefs.is_directory(f"events/{system}"):
            events = [
                name for name in tracefs.listdir(f"events/{system}") if tracefs.is_directory(f"events/{system}/{name}")
            ]
            yield system, [tracefs.read(f"events/{system}/{name}/format") for name in events]


def kallsyms() -> str:
    """The functions of all modules as lines of /proc/kallsyms; END_MARK follows each that no other adjoins.

    Those of the runtime have no module, as in text.
    """
    symbols = sorted((each for each in symbol_table if each.section == ".text"), key=lambda symbol: symbol.address)
    lines = []
    for number, symbol in enumerate(symbols):
        name = symbol.name.replace(" ", "_")
        module = "" if symbol.module == RUNTIME else f"\t[{symbol.module.replace(' ', '_')}]"
        lines.append(f"{symbol.address:016x} t {name}{module}\n")
        after = symbols[number + 1].address if number + 1 < len(symbols) else None
        if after is None or after > symbol.end:
            lines.append(f"{symbol.end:016x} t {END_MARK}\n")
    return "".join(lines)
