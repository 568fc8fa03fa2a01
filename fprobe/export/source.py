"""What the writers of text and JSON read records from: a trace.dat, or the memory of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from fprobe.export.formats import EventFormat
from ftrace.ring_buffer.reader import Record


class Symbols(Protocol):
    """Addresses to names."""

    def describe(self, address: int, /) -> str:
        """`symbol+0xoffset/0xsize [module]`; the bare address in hexadecimal if no symbol covers it."""

    def name(self, address: int, /) -> str:
        """`symbol [module]`; likewise."""


class Source(Protocol):
    """Records, and what is needed to show them."""

    @property
    def clock(self) -> str:
        """The name of the clock of the time stamps."""

    @property
    def formats(self) -> Mapping[int, EventFormat]:
        """Events, by their numbers."""

    @property
    def symbols(self) -> Symbols:
        """Names for the addresses in records."""

    def comm(self, tid: int, /) -> str:
        """The name of a thread."""

    def records(self) -> Iterator[Record]:
        """The records of all slots, merged by time."""
