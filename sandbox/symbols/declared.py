"""Code that other JIT compilers declare to profilers: their lines in /tmp/perf-PID.map of this process.

The file has a predictable name in a directory that is writable by all. It is read only if it is a regular file of this user,
and it is taken for what it is: lines that are no lines are passed over, and addresses are checked by who uses them.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from sandbox.symbols.perfmap import PerfMap, began, perf_map

_AT_ONCE = 64 << 20
"""Bytes that are read at most whenever the file is looked at."""
_MOST = 1 << 28
"""Bytes of the longest function that is believed."""


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
    """The lines of others than `own`. Each look reads what has been appended since the last."""

    def __init__(self, own: PerfMap) -> None:
        self._own = own
        self._file: tuple[str, int] = ("", 0)
        """Path and inode of the file that was read last, up to `_offset`."""
        self._offset = 0

    def news(self) -> list[Declared]:
        """The lines since the last look, in their order. None if there is no file that may be believed."""
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
    return found if 0 < found.address < 1 << 47 and 0 < found.size < _MOST else None


declarations = Declarations(perf_map)
"""Those of this process."""
