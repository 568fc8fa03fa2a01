"""Buffer: a ring buffer as tracefs has one for the top level and one for each instance."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import NamedTuple

from ftrace.ring_buffer import clock as clocks
from ftrace.ring_buffer import layout, pages, reader
from ftrace.ring_buffer.arena import Rings, arena
from ftrace.ring_buffer.reader import Reader, Record
from ftrace.runtime import runtime
from sandbox import fork

DEFAULT_SIZE_KB = 1408
DEFAULT_SUBBUF_KB = 4
MAX_SUBBUF_KB = 512


class Stats(NamedTuple):
    """What per_cpu/cpuN/stats says of a slot. Times are in units of the clock."""

    entries: int
    overrun: int
    commit_overrun: int
    bytes: int
    oldest: int
    now: int
    dropped: int
    read: int


class Buffer:
    """A ring buffer: a slot for each thread that records.

    `size_kb`: the most that a thread's pages may hold, in KiB; `subbuf_kb`: of one sub-buffer, 1 to 512, rounded up to a power
    of two of at least 4; `overwrite`: whether a full slot loses its oldest events, or new ones; `clock`: of trace_clock.
    Raises ValueError for an argument out of range, MemoryError if there are too many buffers.
    """

    def __init__(
        self,
        name: str = "",
        *,
        size_kb: int = DEFAULT_SIZE_KB,
        subbuf_kb: int = DEFAULT_SUBBUF_KB,
        overwrite: bool = True,
        clock: str = "local",
    ) -> None:
        self.name = name
        self._size_kb = _in_range("size_kb", size_kb, 1, layout.geometry(0).pages + (1 << 42))
        self._order = layout.subbuf_order(_in_range("subbuf_kb", subbuf_kb, 1, MAX_SUBBUF_KB))
        self._clock = clocks.find(clock)
        self._overwrite = overwrite
        self._lock = fork.renew(threading.RLock())
        self._arena = arena()
        self._handle = self._arena.handle()
        self._live = self._ring(is_live=True)
        self._reader = Reader(self._live)
        self._handle.ring = self._live.address
        self._arena.take_part_in_forks(self)

    @property
    def address(self) -> int:
        """Of the handle: what a handler gives to `writer.reserve`."""
        return ctypes.addressof(self._handle)

    def _ring(self, is_live: bool) -> Rings:
        count = layout.subbufs(self._size_kb, self._order)
        return self._arena.ring(self.name, is_live, self._clock, self._order, count, self._overwrite)

    def after_fork(self) -> None:
        """In the child: an empty ring in the child's own memory file."""
        self._live = self._ring(is_live=True)
        self._reader = Reader(self._live)
        self._handle.ring = self._live.address

    @property
    def now(self) -> int:
        """The time by the buffer's clock, in its units."""
        address = ctypes.addressof(self._live.clock_state)
        return runtime().image.call("ring_clock_now", address) & (1 << 64) - 1

    def records(self) -> Iterator[Record]:
        """What the buffer holds, merged by time, as the file trace shows it. Nothing is consumed."""
        return reader.records(self._live)

    def consume(self) -> Iterator[Record]:
        """What the buffer holds, merged by time, as trace_pipe reads it: what was iterated over is gone."""
        return iter(self._reader)

    def raw_pages(self) -> Iterator[tuple[int, bytes]]:
        """Consume whole sub-buffers: slot and bytes, as per_cpu/cpuN/trace_pipe_raw gives them."""
        for slot_reader in self._reader.slots():
            while (taken := slot_reader.take()) is not None:
                page, lost = taken
                yield slot_reader.slot, pages.marked(pages.without_first(page.data, page.skip), lost)

    def close(self) -> None:
        """Give everything back. No probe records to the buffer any more."""
        with self._lock:
            self._arena.forget(self)
            self._arena.give_handle(self._handle)
            self._arena.retire(self._live)


def _in_range(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; it must be between {least} and {most}")
    return value
