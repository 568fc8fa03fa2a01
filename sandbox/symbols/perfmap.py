"""/tmp/perf-PID.map, from which `perf` and other profilers take the names of JIT code: lines of ours, and of other compilers.

Each line is `address size name`, with numbers in hexadecimal. Lines are only appended; of several lines that cover an address,
the last one counts. The file has a predictable name in a directory that is writable by all. It is read only if it is a regular
file of this user; invalid lines are skipped, and addresses are checked by the callers.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TextIO

from sandbox.process import fork

OPT_OUT = "FPROBE_NO_PERF_MAP"
"""Set this environment variable to write no such file."""
_AT_ONCE = 64 << 20
"""The most bytes read in one call of `news`."""
_LONGEST = 1 << 28
"""Bytes of the longest function that a line may declare."""


class PerfMap:
    """The map of this process, opened when the first line is written. After a fork the child starts one of its own.

    `directory` is where profilers look.
    """

    def __init__(self, directory: Path = Path("/tmp")) -> None:
        self._directory = directory
        self._lock = fork.renew(threading.Lock())
        self._stream: TextIO | None = None
        self._written: list[str] = []
        self.lines: set[str] = set()
        """Every line that has been added, without its end, so that readers can distinguish it from those of other writers."""
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
        if os.environ.get(OPT_OUT):
            return
        text = "".join(f"{address:x} {size:x} {name}\n" for address, size, name in entries)
        with self._lock:
            try:
                self._write(text)
            except OSError:
                self._stream, self._pid = None, 0  # lines that were not written are written with the next ones

    def _write(self, text: str) -> None:
        self._written.append(text)
        self.lines.update(text.splitlines())
        if self._stream is None or self._pid != os.getpid():
            # A child of fork has the parent's code, but a map file of its own.
            self._stream, self._pid = self._open(), os.getpid()
            self._stream.writelines(self._written)
        else:
            self._stream.write(text)
        self._stream.flush()

    def _open(self) -> TextIO:
        # The name is predictable and the directory is writable by all: follow no link, append to no other user's file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o644)
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            os.close(descriptor)
            raise PermissionError(f"{self.path} belongs to another user")
        if status.st_mtime < began() - 1:  # left by another process that had this number
            os.ftruncate(descriptor, 0)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="surrogateescape")


def began() -> float:
    """When this process did, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
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
        own = self._own.lines
        found = (_parsed(line) for line in text.splitlines() if line not in own)
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
        self._offset += len(whole)
        return whole.decode(errors="surrogateescape")


def _parsed(line: str) -> Declared | None:
    try:
        address, size, name = line.split(maxsplit=2)
        found = Declared(int(address, 16), int(size, 16), name.strip())
    except ValueError:
        return None
    return found if 0 < found.address < 1 << 47 and 0 < found.size < _LONGEST else None


declarations = Declarations(perf_map)
"""The declarations of this process."""
