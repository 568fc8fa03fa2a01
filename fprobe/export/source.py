"""Interface of the sources of records: a trace.dat, or the memory of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from fprobe.export.formats import EventFormat
from ftrace.ring_buffer.reader import Record


class Symbols(Protocol):
    """Symbols for addresses."""

    def describe(self, address: int, /) -> str:
        """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""

    def name(self, address: int, /) -> str:
        """`symbol [module]`; the bare address in hexadecimal if no symbol covers it."""


class Source(Protocol):
    """Records, with the formats, symbols and thread names needed to print them."""

    @property
    def clock(self) -> str:
        """The name of the clock of the time stamps."""

    @property
    def formats(self) -> Mapping[int, EventFormat]:
        """Events by their type numbers."""

    @property
    def symbols(self) -> Symbols:
        """Symbols for the addresses in records."""

    def comm(self, tid: int, /) -> str:
        """The name of a thread."""

    def records(self) -> Iterator[Record]:
        """The records of all slots, in order of time."""
