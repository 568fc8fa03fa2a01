"""/tmp/perf-PID.map, from which `perf` and other profilers take the names of JIT code: lines of ours, and of other compilers.

Each line is `address size name`, with numbers in hexadecimal. Lines are only appended; of several lines that cover an address,
the last one counts. The file has a predictable name in a directory that is writable by all. It is read only if it is a regular
file of this user; invalid lines are skipped, and addresses are checked by the callers.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from sandbox.process import fork

OPT_OUT = "FPROBE_NO_PERF_MAP"
"""Set this environment variable to write no such file."""
_AT_ONCE = 64 << 20
"""The most bytes read in one call of `news`."""
_LONGEST = 1 << 28
"""Bytes of the longest function that a line may declare."""


class PerfMap:
    """The map of this process, made when the first line is written. After a fork the child starts one of its own.

    `directory` is where profilers look. `is_wanted`: whether to write it; the file is never removed, as others may write it, too.
    """

    def __init__(self, directory: Path = Path("/tmp")) -> None:
        self.is_wanted = True
        self._directory = directory
        self._lock = fork.renew(threading.Lock())
        self._present: dict[int, str] = {}
        """The last line of each address. Addresses are used again: there are no more lines than there is code."""
        self._late: list[str] = []
        """Lines that have not been written yet."""
        self._own = WrittenRanges()
        self.is_wanted = True
        """Whether lines of ours are written."""
        self._pid = 0

    @property
    def path(self) -> Path:
        """The file that this process writes."""
        return self._directory / f"perf-{os.getpid()}.map"

    def add(self, address: int, size: int, name: str) -> None:
        """Name the `size` bytes of code at `address`. Silent if it cannot be written: profiles are a convenience."""
        self.add_all([(address, size, name)])

    def add_all(self, entries: Iterable[tuple[int, int, str]]) -> None:
        """Name several stretches of code at once: (address, size in bytes, name)."""
        if not self.is_wanted or os.environ.get(OPT_OUT):
            return
        with self._lock:
            for address, size, name in entries:
                self._present.pop(address, None)  # the last line that covers an address counts: it goes to the end
                self._present[address] = f"{address:x} {size:x} {name}\n"
                self._late.append(self._present[address])
            with contextlib.suppress(OSError):  # lines that were not written are written with the next ones
                self._write()

    def without_own(self, data: bytes, start: int, inode: int) -> bytes:
        """The part of `data`, read from byte `start` of the map with that inode, that others have written."""
        with self._lock:
            return self._own.removed_from(data, start) if self._own.inode == inode else data

    def _write(self) -> None:
        with self._open() as stream:  # not for longer: a program may close it, and have another file under its number
            if self._pid != os.getpid():
                # A child of fork has the parent's code, but a map file of its own.
                self._pid, self._late = os.getpid(), list(self._present.values())
            data = memoryview("".join(self._late).encode(errors="surrogateescape"))
            try:
                while data:
                    size = stream.write(data)
                    self._own.add(stream.tell() - size, size)
                    data = data[size:]
            except OSError:
                self._pid = 0
                raise
            self._late = []

    def _open(self) -> FileIO:
        # The name is predictable and the directory is writable by all: follow no link, append to no other user's file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            os.close(descriptor)
            raise PermissionError(f"{self.path} belongs to another user")
        if status.st_mtime < began() - 1:  # left by another process that had this number
            os.ftruncate(descriptor, 0)
        if self._own.inode != status.st_ino:
            self._own = WrittenRanges(status.st_ino)
        return FileIO(descriptor, "a")


class WrittenRanges:
    """The bytes of a map file that this process has written: ranges in their order; adjacent ones are one."""

    def __init__(self, inode: int = 0) -> None:
        self.inode = inode
        self._stretches: list[tuple[int, int]] = []

    def add(self, start: int, size: int) -> None:
        """Add the `size` bytes from `start`, the end of the file. If the file has been cut, forget what was beyond."""
        while self._stretches and self._stretches[-1][1] > start:
            self._stretches.pop()
        if self._stretches and self._stretches[-1][1] == start:
            start, size = self._stretches[-1][0], size + start - self._stretches.pop()[0]
        self._stretches.append((start, start + size))

    def removed_from(self, data: bytes, start: int) -> bytes:
        """`data`, which begins at byte `start` of the file, without them."""
        left, at = [], 0
        for first, end in self._stretches:
            left.append(data[at : max(at, first - start)])
            at = max(at, end - start)
        return b"".join((*left, data[at:]))


def began() -> float:
    """When this process did, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


perf_map = PerfMap()
"""The map of this process."""


class Declared(NamedTuple):
    """A line: `size` bytes of code at `address`."""

    address: int
    size: int
    name: str

    @property
    def end(self) -> int:
        return self.address + self.size

    @property
    def span(self) -> tuple[int, int]:
        return self.address, self.end


class Declarations:
    """The lines of other writers than `own`. Each call reads what has been appended since the last one."""

    def __init__(self, own: PerfMap) -> None:
        self._own = own
        self._file: tuple[str, int] = ("", 0)
        """Path and inode of the file that was read last, up to `_offset`."""
        self._offset = 0

    def news(self) -> list[Declared]:
        """The lines since the last call, in their order; none if there is no regular file of this user."""
        try:
            text = self._appended()
        except OSError:
            return []
        found = map(_parsed, text.splitlines())
        return [line for line in found if line is not None]

    def _appended(self) -> str:
        path = str(self._own.path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mtime < began() - 1:
                return ""  # the last: left by another process that had this number
            if self._file != (path, status.st_ino) or status.st_size < self._offset:
                self._file, self._offset = (path, status.st_ino), 0
            stream.seek(self._offset)
            data = stream.read(_AT_ONCE)
        whole = data[: data.rfind(b"\n") + 1]  # the last line may be half written
        others = self._own.without_own(whole, self._offset, self._file[1])
        self._offset += len(whole)
        return others.decode(errors="surrogateescape")


def _parsed(line: str) -> Declared | None:
    try:
        address, size, name = line.split(maxsplit=2)
        found = Declared(int(address, 16), int(size, 16), name.strip())
    except ValueError:
        return None
    return found if 0 < found.address < 1 << 47 and 0 < found.size < _LONGEST else None


declarations = Declarations(perf_map)
"""The declarations of this process."""
