"""Files, directories, and handles of open files.

A node implements reading and writing. A handle has the state of one open file, such as its position.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from ftrace.core.kstrtox import kstrtoull
from sandbox.process import fork

ENCODING = "utf-8"
_LINES = 64
"""Texts that are generated at a time."""


class Handle:
    """An open file. The base class raises OSError for every operation but `close`, as a file that does not support it."""

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes from the position, to the end if `size` is negative. Raises OSError."""
        raise OSError(errno.EINVAL, "this file cannot be read, only written")

    is_stream = False
    """Whether it is a pipe: a read consumes, may wait, and there is no position."""

    is_slow = False
    """Whether a write may take as long as a program's call."""

    def read_now(self, size: int) -> bytes | None:
        """As `read`, but without waiting: None if there is nothing to read yet. Raises OSError."""
        return self.read(size)

    def write(self, data: bytes) -> int:
        """Write, and return the number of bytes accepted. Raises OSError."""
        raise OSError(errno.EINVAL, "this file cannot be written, only read")

    def seek(self, position: int) -> int:
        """Move to `position` bytes from the start. Raises OSError(ESPIPE) for a stream."""
        raise OSError(errno.ESPIPE, "this file is a stream, which has no position; read it from the start to its end")

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether a read returns at once, as poll() tells: always, but for a stream. Waits up to `timeout` s; None: forever."""
        return True

    def close(self) -> None:
        """Close the file. Further calls do nothing."""

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Node:
    """A file or directory. `mode`: its permission bits. `links`: the number of links that `ls -l` shows.

    `size`: in bytes; 0 for what is made at a read, as of all files of tracefs. `of_cpus`: what stands for it where the tree is
    shown by the machine's CPUs, as other programs expect, and not by slots.
    """

    mode = 0o640
    size = 0
    of_cpus: Node | None = None

    @property
    def links(self) -> int:
        """One; a directory has more."""
        return 1

    def open(self, flags: int) -> Handle:
        """Open the file with O_* `flags`. Raises OSError."""
        raise NotImplementedError


class TextHandle(Handle):
    """An open text file. Its content is generated at the first read, and again after a seek to the start.

    Writing does not use or move the position, since what is written are commands.
    """

    def __init__(self, read: Callable[[], str] | None, write: Callable[[str], int | None] | None) -> None:
        self._read = read
        self._write = write
        self._content: bytes | None = None
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Read from the content generated at the first read. Raises OSError(EINVAL) if the file cannot be read."""
        if self._read is None:
            return super().read(size)
        if self._content is None:
            self._content = self._read().encode(ENCODING, "surrogateescape")
        end = None if size < 0 else self._position + size
        taken = self._content[self._position : end]
        self._position += len(taken)
        return taken

    def write(self, data: bytes) -> int:
        """Pass the text to the file's write function. Raises OSError."""
        if self._write is None:
            return super().write(data)
        text = data.decode(ENCODING, "surrogateescape")
        taken = self._write(text)
        return len(data) if taken is None else len(text[:taken].encode(ENCODING, "surrogateescape"))

    def seek(self, position: int) -> int:
        """Move to `position` and return it. At 0 the content will be generated again. Raises OSError(EINVAL) below 0."""
        if position < 0:
            raise OSError(errno.EINVAL, f"the position is {position}; it must be at least 0")
        if position == 0:
            self._content = None
        self._position = position
        return position


class LinesHandle(TextHandle):
    """An open text file whose content is generated as it is read. `lines`: begins anew; its texts follow each other."""

    def __init__(self, lines: Callable[[], Iterator[str]], write: Callable[[str], int | None] | None) -> None:
        super().__init__(None, write)
        self._lines = lines
        self._rest: Iterator[str] | None = None
        self._pending = b""

    def read(self, size: int = -1) -> bytes:
        """Read from the content that begins at the first read."""
        if self._rest is None:
            self._rest = self._lines()
            self._more(self._position)
            self._pending = self._pending[self._position :]
        self._more(size)
        end = len(self._pending) if size < 0 else size
        taken, self._pending = self._pending[:end], self._pending[end:]
        self._position += len(taken)
        return taken

    def _more(self, size: int) -> None:
        """Generate until `size` bytes are pending; if negative, everything."""
        parts, held = [self._pending], len(self._pending)
        while (size < 0 or held < size) and (texts := list(islice(self._rest or (), _LINES))):
            parts.append("".join(texts).encode(ENCODING, "surrogateescape"))
            held += len(parts[-1])
        self._pending = b"".join(parts)

    def seek(self, position: int) -> int:
        """Move to `position` and return it; the content will be generated again. Raises OSError(EINVAL) below 0."""
        if position != self._position or position == 0:
            self._rest, self._pending = None, b""
        return super().seek(position)


class TextFile(Node):
    """A text file implemented by functions.

    `read` returns the content. `write` returns how many characters it accepted, None for all. `truncate` is called when the
    file is opened for writing with O_TRUNC. `mode`: permission bits; by default readable and writable as the functions allow.
    """

    def __init__(
        self,
        read: Callable[[], str] | None = None,
        write: Callable[[str], int | None] | None = None,
        truncate: Callable[[], None] | None = None,
        mode: int | None = None,
    ) -> None:
        self._read, self._write, self._truncate = read, write, truncate
        self.mode = (0o440 if read else 0) | (0o200 if write else 0) if mode is None else mode

    def open(self, flags: int) -> Handle:
        """Open the file. Raises what `truncate` raises."""
        if self._truncate is not None and flags & os.O_TRUNC and flags & os.O_ACCMODE != os.O_RDONLY:
            self._truncate()
        return TextHandle(self._read, self._write)


class LinesFile(Node):
    """A text file whose content is generated as it is read."""

    mode = 0o640

    def __init__(self, lines: Callable[[], Iterator[str]], write: Callable[[str], int | None]) -> None:
        self._lines, self._write = lines, write

    def open(self, flags: int) -> Handle:
        """Open the file."""
        return LinesHandle(self._lines, self._write)


class Directory(Node):
    """A directory. `entries`: its content by name, or a function that returns it at each access.

    `find`: returns one entry, None if there is none, where making all of them would take long.
    """

    mode = 0o750

    def __init__(
        self,
        entries: Mapping[str, Node] | Callable[[], Mapping[str, Node]],
        find: Callable[[str], Node | None] | None = None,
    ) -> None:
        self._entries, self._find = entries, find

    @property
    def entries(self) -> Mapping[str, Node]:
        """Its files and directories by name."""
        return self._entries() if callable(self._entries) else self._entries

    def find(self, name: str) -> Node | None:
        """The file or directory of this name, without making the others; None if there is none."""
        return self._find(name) if self._find is not None else self.entries.get(name)

    @property
    def links(self) -> int:
        """Its own two, and one of each directory in it."""
        return 2 + sum(isinstance(node, Directory) for node in self.entries.values())

    def open(self, flags: int) -> Handle:
        """Open the directory, for reading only; a read then fails with EISDIR. Raises OSError(EISDIR) for writing."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EISDIR, "this is a directory")
        return _DirectoryHandle()

    def make(self, name: str) -> None:
        """Create a directory in it. Raises OSError(EPERM) if this directory does not support it."""
        raise OSError(
            errno.EPERM, f"directory {name!r} cannot be created here; the only place for new directories is instances/"
        )

    def remove(self, name: str) -> None:
        """Remove a directory from it. Raises OSError(EPERM) if this directory does not support it."""
        raise OSError(errno.EPERM, f"{name!r} cannot be removed; only directories in instances/ can")


class _DirectoryHandle(Handle):
    def read(self, size: int = -1) -> bytes:
        """Raises OSError(EISDIR)."""
        raise OSError(errno.EISDIR, "this is a directory")


class HeldDirectory(Directory):
    """A directory that cannot be removed while a file in it is open."""

    def __init__(self, entries: Mapping[str, Node] | Callable[[], Mapping[str, Node]]) -> None:
        super().__init__(entries)
        self._lock = fork.renew(threading.Lock())
        self._holders = 0
        self._is_retired = False

    def hold(self) -> None:
        """Count a file that is about to be opened. Raises OSError(ENOENT) after `retire`."""
        with self._lock:
            if self._is_retired:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            self._holders += 1

    def release(self) -> None:
        """Undo one `hold`."""
        with self._lock:
            self._holders -= 1

    def retire(self) -> None:
        """Allow no file to be opened any more. Raises OSError(EBUSY) while one is open."""
        with self._lock:
            if self._holders:
                raise OSError(errno.EBUSY, f"{self._holders} files in this directory are open; close them first")
            self._is_retired = True


class OpenFile(Handle):
    """An open file, as a descriptor: only what its O_* `flags` allow.

    `directory`: one that cannot be removed while the file is open.
    """

    def __init__(self, node: Node, flags: int, directory: HeldDirectory | None = None) -> None:
        self._flags, self._directory, self._is_open = flags, directory, True
        if directory is not None:
            directory.hold()
        try:
            self._handle = node.open(flags)
        except BaseException:
            if directory is not None:
                directory.release()
            raise

    def _for(self, refused: int, other: str) -> Handle:
        """The file. Raises OSError(EBADF) if it is closed, or open with `refused` alone."""
        if not self._is_open:
            raise OSError(errno.EBADF, "the file is closed")
        if self._flags & os.O_ACCMODE == refused:
            raise OSError(errno.EBADF, f"the file was opened for {other} only; open it with O_RDWR for both")
        return self._handle

    def read(self, size: int = -1) -> bytes:
        """Read from the file. Raises OSError; EBADF if it was opened with O_WRONLY, or is closed."""
        return self._for(os.O_WRONLY, "writing").read(size)

    @property
    def is_stream(self) -> bool:  # type: ignore[override]
        """Whether it is a pipe."""
        return self._handle.is_stream

    @property
    def is_slow(self) -> bool:  # type: ignore[override]
        """Whether a write may take long."""
        return self._handle.is_slow

    def read_now(self, size: int) -> bytes | None:
        """Read from the file without waiting; None if there is nothing to read yet. Raises OSError as `read` does."""
        return self._for(os.O_WRONLY, "writing").read_now(size)

    def write(self, data: bytes) -> int:
        """Write to the file. Raises OSError; EBADF if it was opened with O_RDONLY, or is closed."""
        return self._for(os.O_RDONLY, "reading").write(data)

    def seek(self, position: int) -> int:
        """Move in the file. Raises OSError."""
        return self._for(os.O_ACCMODE, "nothing").seek(position)

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Whether a read returns at once. Waits up to `timeout` s for that; None: forever."""
        return self._for(os.O_ACCMODE, "nothing").poll(timeout)

    def close(self) -> None:
        """Close the file and release the directory. Further calls do nothing."""
        was_open, self._is_open = self._is_open, False
        if was_open:
            try:
                self._handle.close()
            finally:
                if self._directory is not None:
                    self._directory.release()


def written_number(text: str) -> int:
    """Parse a decimal number, with an optional `+` before it and newline after it. Raises OSError: EINVAL, ERANGE."""
    return kstrtoull(text, 10)


def written_switch(text: str) -> bool:
    """Parse 0 or 1. Raises OSError: EINVAL for anything else, ERANGE for a number beyond 64 bits."""
    value = written_number(text)
    if value > 1:
        raise OSError(errno.EINVAL, f"the value is {text.strip()!r}; it must be 0 or 1")
    return bool(value)
