"""This process's counters: in a file that other processes can read, or in private memory where no file can be made."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from sandbox.memory import pages
from sandbox.process import fork
from sandbox.threads import counters, tasks
from sandbox.threads.counters import Line

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage


class CounterFile:
    """The file with every task's row. Around forks the rows are moved by ftrace.hit.counter_rows."""

    def __init__(self, image: NativeImage) -> None:
        self._image = image
        self.header = counters.Header(
            counters.ROWS_AT, tasks.Counters.size, tasks.STRIDE, tasks.CAPACITY, tasks.COUNTER_LINES, os.getpid()
        )
        with contextlib.suppress(OSError):  # RLIMIT_FSIZE, no descriptor
            self._use(self._made())
        fork.at_fork(*map(image.address, ("rows_prepare", "rows_in_parent", "rows_in_child")))
        fork.in_child(fork.Phase.KERNEL, self._after_fork)

    @property
    def fd(self) -> int:
        """Its descriptor, if `readable`."""
        return int(self._image.variable("counter_fd").value)

    @property
    def readable(self) -> bool:
        """Whether the counters can be read from the file: other code may have closed its descriptor.

        In the child of a fork that C code has made they cannot: the file is the parent's.
        """
        return bool(self._image.variable("counters_in_file").value and self._image.call("has_file"))

    def line(self, row: int, number: int) -> Line:
        """The counts of a task for a probe, if `readable`."""
        return counters.read_line(self.fd, self.header, row, number)

    def clear(self, row: int, number: int) -> None:
        """Zero a line, if anything is in it and the file is `readable`."""
        where = self.header.rows_at + row * self.header.stride + number * self.header.line
        if any(os.pread(self.fd, self.header.line, where)):
            os.pwrite(self.fd, bytes(self.header.line), where)

    def _made(self) -> int:
        fd = pages.sparse_backing("fprobe-counters", self.header.size)
        os.pwrite(fd, counters.packed(self.header), 0)
        return fd

    def _use(self, fd: int) -> None:
        """Move the rows into a file. They stay where they are if they cannot be."""
        status = os.fstat(fd)
        for name, value in ("fd", fd), ("device", status.st_dev), ("inode", status.st_ino):
            self._image.variable(f"counter_{name}").value = value
        if self._image.call("rows_into_file"):
            self._leave()

    def _leave(self) -> None:
        os.close(self.fd)
        self._image.variable("counter_inode").value = 0

    def _after_fork(self) -> None:
        """Give the child of os.fork() a file of its own, by the number of its parent's."""
        if not self._image.call("has_file"):
            return
        self.header = self.header._replace(pid=os.getpid())
        try:
            new = self._made()
        except OSError:
            self._leave()
            return
        fd = self.fd
        os.dup2(new, fd, inheritable=False)
        os.close(new)
        self._use(fd)
