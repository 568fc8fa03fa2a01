"""The mounted tree with the interface of the tree in the process: transcripts are replayed through the kernel's file system."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from pathlib import Path

from ftrace.tracing.files.nodes import Directory, Handle, Node
from ftrace.tracing.tracefs.tree import Tracefs

_CHUNK = 1 << 16


class MountedFiles(Tracefs):
    """The files below the directory `top`, by system calls."""

    def __init__(self, top: Path) -> None:
        super().__init__()
        self._top_directory = top

    def _real(self, path: str) -> Path:
        return self._top_directory / path.lstrip("/")

    def find(self, path: str) -> Node:
        """What stat() tells of a file. Raises OSError."""
        found = self._real(path).stat()
        is_directory = stat.S_ISDIR(found.st_mode)
        node = _Directory(self._entries(path), found.st_nlink) if is_directory else Node()
        node.mode = stat.S_IMODE(found.st_mode)
        return node

    def _entries(self, path: str) -> Callable[[], dict[str, Node]]:
        return lambda: {entry.name: self.find(f"{path}/{entry.name}") for entry in self._real(path).iterdir()}

    def open(self, path: str, flags: int = os.O_RDONLY) -> Handle:
        """Open a file."""
        return _Descriptor(os.open(self._real(path), flags))

    def mkdir(self, path: str) -> None:
        """Create a directory."""
        self._real(path).mkdir()

    def rmdir(self, path: str) -> None:
        """Remove a directory."""
        self._real(path).rmdir()


class _Directory(Directory):
    def __init__(self, entries: Callable[[], dict[str, Node]], links: int) -> None:
        super().__init__(entries)
        self._links = links

    @property
    def links(self) -> int:
        """As stat() tells."""
        return self._links


class _Descriptor(Handle):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int = -1) -> bytes:
        """Read once; everything that is there if `size` is negative. Raises OSError."""
        if size >= 0:
            return os.read(self._descriptor, size)
        parts: list[bytes] = []
        try:
            while part := os.read(self._descriptor, _CHUNK):
                parts.append(part)
        except BlockingIOError:
            if not parts:
                raise
        return b"".join(parts)

    def write(self, data: bytes) -> int:
        """Write once. Raises OSError."""
        return os.write(self._descriptor, data)

    def seek(self, position: int) -> int:
        """Move to a position. Raises OSError."""
        return os.lseek(self._descriptor, position, os.SEEK_SET)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether poll() says that it can be read."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1e3))

    def close(self) -> None:
        """Close it. Further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
