"""Records of this process's buffer, in order of time, while they are moved to a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

from fprobe.export.formats import EventFormat
from fprobe.export.trace_dat_reader import records_of
from ftrace.output import symbols
from ftrace.output.cmdlines import saved_cmdlines
from ftrace.ring_buffer.buffer import Buffer
from ftrace.ring_buffer.reader import Record

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

    def look(self) -> None:
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
