"""Recording the buffers of trace arrays to a trace.dat while a program runs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from fprobe.export.compression import NONE
from fprobe.export.formats import EventFormat
from fprobe.export.outcome import Outcome
from fprobe.export.trace_dat import TraceDat
from fprobe.export.trace_dat_pages import Owner, mark
from fprobe.export.trace_dat_reader import Instance, merged, records_of
from fprobe.export.trace_dat_sections import BufferMetadata, Metadata
from fprobe.tracefs import tracefs
from ftrace.core.runtime import RUNTIME
from ftrace.ring_buffer.reader import Record
from ftrace.tracing import symbols
from ftrace.tracing.instances.cmdlines import saved_cmdlines
from ftrace.tracing.instances.printk import text_at
from ftrace.tracing.instances.trace_array import TraceArray, global_trace
from sandbox.images import library_images
from sandbox.images.process_text import is_patchable
from sandbox.symbols.table import Symbol, preference, symbol_table

if TYPE_CHECKING:
    from fprobe.export.columns.stream import PageStream

_BY_TIME = attrgetter("stamp", "slot")


class LiveSymbols:
    """The symbols of this process."""

    describe = staticmethod(symbols.with_offset)
    name = staticmethod(symbols.plain)


class Arriving:
    """A source of the records that have arrived and may be shown: no older one can follow from another slot.

    `instances`: name -> trace array, the top level first, as for the recording; `formats`: events by their type numbers.
    """

    def __init__(self, instances: Mapping[str, TraceArray], formats: Mapping[int, EventFormat]) -> None:
        self.formats = formats
        self.symbols = LiveSymbols()
        self.comm = saved_cmdlines.find
        self.text = text_at
        self.instances = [Instance(name, array.buffer.clock) for name, array in instances.items()]
        self._buffers = [array.buffer for array in instances.values()]
        self._held: list[list[Record]] = [[] for _ in instances]
        self._until: list[int] | None = [0 for _ in instances]

    def begin_reading(self) -> None:
        """Called before the slots are read, one after the other: records after this moment wait for the next reading."""
        self._until = [buffer.now for buffer in self._buffers]

    def add(self, number: int, slot: int, page: bytes) -> None:
        """Take the records of a sub-buffer of a trace array."""
        self._held[number] += records_of(slot, page)

    def end(self) -> None:
        """Nothing follows: show all records."""
        self._until = None

    def merged(self) -> Iterator[tuple[Instance, Record]]:
        """The records that may be shown, each once, in order of time, with their trace arrays."""
        return merged([(instance, iter(self._due(number))) for number, instance in enumerate(self.instances)])

    def _due(self, number: int) -> list[Record]:
        held = self._held[number]
        held.sort(key=_BY_TIME)
        due = [record for record in held if self._until is None or record.stamp <= self._until[number]]
        del held[: len(due)]
        return due


_SHOWN = 16
"""Sub-buffers of each slot that are passed on by one call."""
END_MARK = "$end"
"""A symbol at the end of another one: readers take everything up to the next symbol for a part of the previous one."""


class Recording(Outcome):
    """Moves the records of trace arrays into a file: call `drain` repeatedly, and `finish` at the end.

    `array`: what the file has as its top level, by default that of tracefs; `instances`: further trace arrays, by the names
    that the file gives them; `compression`: none, zlib or zstd; `stream`: takes the sub-buffers in place of a trace.dat.
    `arriving`: gets every record at the next `drain`, also of
    sub-buffers that are not full; the file then has more of them.

    Raises OSError if the file cannot be created: ELOOP for a symbolic link. Raises ValueError for an unknown compression, and
    if the sub-buffers of the trace arrays differ in size.
    """

    def __init__(
        self,
        path: str,
        array: TraceArray | None = None,
        arriving: Arriving | None = None,
        instances: Mapping[str, TraceArray] | None = None,
        compression: str = NONE,
        stream: PageStream | None = None,
    ) -> None:
        self._arriving = arriving
        self.compression = compression
        self.arrays = {"": array or global_trace(), **(instances or {})}
        self._buffers = [each.buffer for each in self.arrays.values()]
        sizes = sorted({buffer.subbuf_kb for buffer in self._buffers})
        if len(sizes) > 1:
            raise ValueError(
                f"sub-buffers of {sizes} KiB; all of one trace.dat must have one size: write buffer_subbuf_size_kb"
            )
        for buffer in self._buffers:
            buffer.clear()
        self.first_metadata = self.metadata
        """What the file has besides the records until it is finished."""
        self.stream = stream
        self.file: TraceDat | PageStream
        if stream is not None:
            names = [array.name for array in self.arrays.values()]
            stream.begin(sizes[0] * 1024, names, lambda: self.metadata)
            self.file = stream
        else:
            self.file = TraceDat(path, sizes[0] * 1024, len(self._buffers), compression, self.first_metadata)
        self.lost = 0

    def drain(self) -> bool:
        """Write the full sub-buffers. Returns whether there were any."""
        before = self.file.pages
        if self._arriving is not None:
            self._arriving.begin_reading()
        slots = [(number, slot) for number, buffer in enumerate(self._buffers) for slot in buffer.slots()]
        for number, slot in slots:
            self._drain_slot(number, slot)
        return self.file.pages > before + (len(slots) if self._arriving is not None else 0)

    def _drain_slot(self, number: int, slot: int) -> None:
        """Move the full sub-buffers of a slot, unless those of another could not be written: these wait in the only place."""
        if not self.is_written:
            return
        if self._arriving is not None:
            self._move(number, self._newest(number, slot))
            return
        try:
            self.file.drain(self._buffers[number], slot, number)
        except OSError as failed:
            self.fail(failed)

    def finish(self, stop: Callable[[], None] = lambda: None) -> None:
        """Call `stop` to end the recording, then write the remaining records and the metadata. Raises OSError."""
        stop()
        metadata = self.metadata
        self.lost = sum(buffer.lost() for buffer in self._buffers)
        for number, buffer in enumerate(self._buffers):
            for slot in buffer.slots():
                self._drain_slot(number, slot)
                self._move(number, self._newest(number, slot, buffer.slot_size_kb(slot) // buffer.subbuf_kb + 2))
        if self._arriving is not None:
            self._arriving.end()
        if self.left is not None:
            return
        try:
            self.dropped_pages = self.file.finish(metadata)
        except OSError as failed:
            if self.heir is None or not self.heir.can_write_after(failed):
                raise
            self.left = failed

    @property
    def metadata(self) -> Metadata:
        """The present contents of the file besides the records."""
        buffers = [_buffer_metadata(name, array) for name, array in self.arrays.items()]
        return _metadata(buffers, _directory(self.arrays[""]))

    def _move(self, number: int, pages: Iterator[tuple[int, bytes]]) -> None:
        """Write these sub-buffers of a trace array, and pass them on."""
        try:
            for slot, page in pages if self.is_written else ():
                self._add(number, slot, page)
        except OSError as failed:
            self.fail(failed)

    def _add(self, number: int, slot: int, page: bytes) -> None:
        try:
            self.file.add(slot, page, number)
        except OSError:
            if self.file.staging is not None:
                self.file.staging.put(mark(Owner(number, slot)), page)
            raise
        if self._arriving is not None:
            self._arriving.add(number, slot, page)

    def _newest(self, number: int, slot: int, most: int = _SHOWN) -> Iterator[tuple[int, bytes]]:
        """Consume sub-buffers of a slot, full or not: few, because a program may make records faster than they are shown."""
        for _ in range(most):
            page = self._buffers[number].take_page(slot)
            if page is None:
                return
            yield slot, page

    @property
    def size(self) -> str:
        """How much is in the file."""
        return f"{self.stream.rows:,} rows" if self.stream is not None else f"{self.kib:,} KiB of records"

    @property
    def unwritten(self) -> int:
        """See `Outcome`."""
        return self.stream.unwritten if self.stream is not None else 0

    @property
    def progress(self) -> str:
        """How much has been recorded so far."""
        written = sum(buffer.written() for buffer in self._buffers)
        lost = sum(buffer.lost() for buffer in self._buffers)
        return f"{written:,} records, {self.kib:,} KiB written, {lost:,} lost"

    @property
    def kib(self) -> int:
        """KiB of records in the file, before compression."""
        return self.file.pages * self.file.page_size >> 10


def _directory(array: TraceArray) -> str:
    return f"instances/{array.name}/" if array.name else ""


def _buffer_metadata(name: str, array: TraceArray) -> BufferMetadata:
    stats = {slot: tracefs.read(f"{_directory(array)}per_cpu/cpu{slot}/stats") for slot in array.buffer.slots()}
    return BufferMetadata(name, array.buffer.clock, stats)


def _metadata(buffers: list[BufferMetadata], directory: str) -> Metadata:
    return Metadata(
        header_page=tracefs.read("events/header_page"),
        header_event=tracefs.read("events/header_event"),
        formats=dict(_formats()),
        symbols=kallsyms(),
        printk_formats=tracefs.read("printk_formats"),
        cmdlines=saved_cmdlines.read(),
        clocks=tracefs.read(f"{directory}trace_clock"),
        buffers=buffers,
    )


def _formats() -> Iterator[tuple[str, list[str]]]:
    for system in tracefs.listdir("events"):
        if tracefs.is_directory(f"events/{system}"):
            events = [
                name for name in tracefs.listdir(f"events/{system}") if tracefs.is_directory(f"events/{system}/{name}")
            ]
            yield system, [tracefs.read(f"events/{system}/{name}/format") for name in events]


def kallsyms() -> str:
    """The functions of all modules, and of libraries that are probed, as lines of /proc/kallsyms."""
    ours = [each for each in symbol_table if each.section == ".text"]
    theirs = [
        each for image in library_images.source.images() if is_patchable(image.library) for each in image.functions
    ]
    return symbol_lines([*ours, *theirs])


def _likeness(symbol: Symbol) -> tuple[object, ...]:
    return symbol.size == 0, preference(symbol.name)


def symbol_lines(symbols: Iterable[Symbol]) -> str:
    """Functions as lines of /proc/kallsyms.

    END_MARK follows each that no other adjoins. Those of the runtime have no module, as in text. Of several names for one address
    there is the one that programmers write: readers take any.
    """
    start = operator.attrgetter("address")
    same = (list(each) for _, each in itertools.groupby(sorted(symbols, key=start), start))
    symbols = [each[0] if len(each) == 1 else min(each, key=_likeness) for each in same]
    lines = []
    for number, symbol in enumerate(symbols):
        name = symbol.name.replace(" ", "_")
        module = "" if symbol.module == RUNTIME else f"\t[{symbol.module.replace(' ', '_')}]"
        lines.append(f"{symbol.address:016x} t {name}{module}\n")
        after = symbols[number + 1].address if number + 1 < len(symbols) else None
        if after is None or after > symbol.end:
            lines.append(f"{symbol.end:016x} t {END_MARK}\n")
    return "".join(lines)
