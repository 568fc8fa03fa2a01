"""This process's counters: in a file that other processes can read, or in private memory where no file can be made."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

from sandbox.memory import mappings, pages
from sandbox.threads import counters, tasks
from sandbox.threads.counters import Line

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

_NO_ROW = (1 << 64) - 1
_SIZE = tasks.CAPACITY * tasks.STRIDE


def _header() -> counters.Header:
    return counters.Header(
        counters.ROWS_AT, tasks.Counters.size, tasks.STRIDE, tasks.CAPACITY, tasks.COUNTER_LINES, os.getpid()
    )


class CounterFile:
    """The file with every task's row, mapped at `start`, where private memory is reserved for them."""

    def __init__(self, image: NativeImage, start: int) -> None:
        self._image = image
        self._start = start
        self.header = _header()
        self.fd = -1
        """Its descriptor; -1: there is none."""
        self._row = _NO_ROW
        with contextlib.suppress(OSError):  # RLIMIT_FSIZE, no descriptor
            self.fd = self._made()
            mappings.map_shared(self.fd, counters.ROWS_AT, _SIZE, start)
        self._identity = self._identify()

    def _made(self) -> int:
        fd = pages.sparse_backing("fprobe-counters", self.header.size)
        os.pwrite(fd, counters.packed(self.header), 0)
        return fd

    def _identify(self) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            found = os.fstat(self.fd)
            return found.st_dev, found.st_ino
        return None

    @property
    def readable(self) -> bool:
        """Whether the counters can be read from the file: other code may have closed its descriptor."""
        return self._identity is not None and self._identify() == self._identity

    def line(self, row: int, number: int) -> Line:
        """The counts of a task for a probe, if `readable`."""
        return counters.read_line(self.fd, self.header, row, number)

    def clear(self, row: int, number: int) -> None:
        """Zero a line, if anything is in it and the file is `readable`."""
        where = self.header.rows_at + row * self.header.stride + number * self.header.line
        if any(os.pread(self.fd, self.header.line, where)):
            os.pwrite(self.fd, bytes(self.header.line), where)

    # -- forks --------------------------------------------------------------------------------------------------

    def before(self) -> None:
        """The forking thread counts in private memory until both sides have a file of their own."""
        self._row = self._image.call("row_number") if self.readable else _NO_ROW
        if self._row == _NO_ROW:
            return
        try:
            self._move(to_file=False)
        except OSError:  # both processes share the row until the child has its own
            self._row = _NO_ROW

    def after_in_parent(self) -> None:
        """Back into the file."""
        if self._row != _NO_ROW:
            self._into_file()

    def after_in_child(self) -> None:
        """Give the child a file of its own, with the counts so far."""
        if self._identity is None:
            return
        if not self.readable:
            self._into_private_memory(None)
            return
        old, before = self.fd, self.header
        try:
            self.header = _header()
            new = self._made()
        except OSError:
            self._into_private_memory(old)
            return
        for start, end in counters.used(old, before.rows_at, before.size):
            _copy(old, new, start, end)
        os.dup2(new, old, inheritable=False)
        os.close(new)
        self._identity = self._identify()
        for start, end in self._others():
            mappings.map_shared(self.fd, counters.ROWS_AT + start, end - start, self._start + start)
        if self._row != _NO_ROW:
            self._into_file()

    def _others(self) -> list[tuple[int, int]]:
        """The offsets, from the first row, of all rows but the forking thread's."""
        if self._row == _NO_ROW:
            return [(0, _SIZE)]
        own = self._row * tasks.STRIDE
        return [part for part in ((0, own), (own + tasks.STRIDE, _SIZE)) if part[0] < part[1]]

    def _into_file(self) -> None:
        self._move(to_file=True)

    def _into_private_memory(self, old: int | None) -> None:
        """No other file can be made. `old`: the previous one; None: only its mapping exists."""
        for start, end in self._others():
            if old is not None:
                parts = counters.used(old, counters.ROWS_AT + start, counters.ROWS_AT + end)
                contents = [(first - counters.ROWS_AT, os.pread(old, last - first, first)) for first, last in parts]
            else:
                rows = range(
                    start, min(end, self._image.variable("tasks_claimed_high").value * tasks.STRIDE), tasks.STRIDE
                )
                contents = [(row, ctypes.string_at(self._start + row, tasks.STRIDE)) for row in rows]
            mappings.map_private(self._start + start, end - start)
            for first, data in contents:
                ctypes.memmove(self._start + first, data, len(data))
        if old is not None:
            os.close(old)
        self.fd, self._identity = -1, None

    def _move(self, to_file: bool) -> None:
        spare = mappings.reserve(tasks.STRIDE)
        try:
            failed = self._image.call("move_row", self.fd, self._position(), spare, int(to_file))
        finally:
            mappings.release(spare, tasks.STRIDE)
        if failed < 0:
            raise OSError(-failed, f"the counters of a thread cannot be mapped: {os.strerror(-failed)}")

    def _position(self) -> int:
        return counters.ROWS_AT + self._row * tasks.STRIDE


def _copy(old: int, new: int, start: int, end: int) -> None:
    while start < end:
        start += os.pwrite(new, os.pread(old, min(end - start, 1 << 20), start), start)
