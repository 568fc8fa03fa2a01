"""The files of the shell: tracefs, where it begins, kprobes/ of debugfs, the sysctls, and a private /tmp."""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from fprobe.mount.beside import sysctls
from ftrace.tracing.files.nodes import Directory, Handle, Node
from ftrace.tracing.tracefs.tree import Tracefs
from kprobes.events.debugfs import debugfs

TRACEFS = "/sys/kernel/tracing"
_ONCE = "/sys/kernel/debug/tracing"


class TemporaryFile(Node):
    """A plain file in /tmp. It ends with the shell."""

    mode = 0o644

    def __init__(self) -> None:
        self.content = b""

    def open(self, flags: int) -> Handle:
        if flags & os.O_TRUNC:
            self.content = b""
        return _TemporaryHandle(self, bool(flags & os.O_APPEND))


class _TemporaryHandle(Handle):
    def __init__(self, file: TemporaryFile, appends: bool = False) -> None:
        self._file, self._position, self._appends = file, 0, appends

    def read(self, size: int = -1) -> bytes:
        end = None if size < 0 else self._position + size
        taken = self._file.content[self._position : end]
        self._position += len(taken)
        return taken

    def write(self, data: bytes) -> int:
        content = self._file.content
        if self._appends:
            self._position = len(content)
        end = self._position + len(data)
        self._file.content = content[: self._position].ljust(self._position, b"\0") + data + content[end:]
        self._position = end
        return len(data)

    def seek(self, position: int) -> int:
        self._position = position
        return position


class TemporaryDirectory(Directory):
    """/tmp, and the directories in it, which scripts fill."""

    def __init__(self) -> None:
        self.content: dict[str, Node] = {}
        super().__init__(self.content)

    def make(self, name: str) -> None:
        """Create a directory. Raises OSError(EEXIST)."""
        if name in self.content:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.content[name] = TemporaryDirectory()

    def remove(self, name: str) -> None:
        """Remove a directory. Raises OSError(ENOTEMPTY) while something is in it."""
        node = self.content[name]
        if isinstance(node, Directory) and node.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        del self.content[name]


def operands(words: list[str]) -> list[str]:
    """The words that are no options; all after `--`."""
    if "--" in words:
        at = words.index("--")
        return operands(words[:at]) + words[at + 1 :]
    return [word for word in words if not word.startswith("-") or word == "-"]


def try_each(paths: list[str], action: Callable[[str], object], message: str, fds: Mapping[int, Any]) -> int:
    """Call `action` with each path. Returns the exit status, 1 if one failed, of which `message` tells path and error."""
    status = 0
    for path in paths:
        try:
            action(path)
        except OSError as failed:
            fds[2].write((message.format(path, os.strerror(failed.errno or 0)) + "\n").encode())
            status = 1
    return status


def all_of(handle: Handle) -> bytes:
    """Read an open file to its end, a stream until it would block. Raises OSError."""
    try:
        return handle.read()
    except BlockingIOError:
        return b""


def _outside(tracing: Directory) -> Directory:
    """The paths that a script finds below /."""
    kernel = Directory(
        {"tracing": tracing, "debug": Directory({"kprobes": debugfs.find("kprobes"), "tracing": tracing})}
    )
    return Directory(
        {
            "dev": Directory({"null": _Null(), "zero": _Zero()}),
            "proc": Directory({"sys": sysctls()}),
            "sys": Directory({"kernel": kernel}),
            "tmp": TemporaryDirectory(),
        }
    )


class _Null(Node):
    """/dev/null."""

    def open(self, flags: int) -> Handle:
        return _TemporaryHandle(TemporaryFile())


class _Zero(Node):
    """/dev/zero."""

    def open(self, flags: int) -> Handle:
        return _ZeroHandle(TemporaryFile())


class _ZeroHandle(_TemporaryHandle):
    def read(self, size: int = -1) -> bytes:
        """As many zeros as asked for. Raises OSError(EFBIG) for all of them."""
        if size < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return bytes(size)

    def write(self, data: bytes) -> int:
        return len(data)


class Files:
    """The shell's files by path. `tree` is at /sys/kernel/tracing and, as before 4.1, at /sys/kernel/debug/tracing.

    `directory`: the current directory, from / on. `opened`: called with each path that is opened, and the flags.
    """

    def __init__(self, tree: Tracefs, opened: Callable[[str, int], None] = lambda _path, _flags: None) -> None:
        self.tree = tree
        self.directory = TRACEFS
        self._opened = opened
        self._root = _outside(tree.root)

    def at(self, path: str) -> str:
        """The path from / on."""
        return posixpath.normpath("/" + posixpath.join(self.directory, path)).replace("//", "/")

    def inside(self, path: str) -> str | None:
        """The path relative to the root of `tree`; None if it is not in there."""
        where = self.at(path)
        for mounted in (TRACEFS, _ONCE):
            if (where + "/").startswith(mounted + "/"):
                return where[len(mounted) + 1 :]
        return None

    def find(self, path: str) -> Node:
        """The node at `path`. Raises OSError."""
        inside = self.inside(path)
        if inside is not None:
            return self.tree.find(inside)
        node: Node | None = self._root
        for name in self.at(path).split("/"):
            if name:
                node = node.entries.get(name) if isinstance(node, Directory) else None
        if node is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return node

    def change(self, path: str) -> None:
        """Make a directory the current one. Raises OSError: ENOENT, ENOTDIR."""
        if not isinstance(self.find(path), Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        self.directory = self.at(path)

    def open(self, path: str, flags: int) -> Handle:
        """Open a file with O_* flags; O_CREAT creates files in /tmp. Raises OSError."""
        self._opened(path, flags)
        inside = self.inside(path)
        if inside is not None:
            return self.tree.open(inside, flags)
        if flags & os.O_CREAT:
            directory, name = posixpath.split(self.at(path))
            above = self.find(directory)
            if isinstance(above, TemporaryDirectory):
                above.content.setdefault(name, TemporaryFile())
        return self.find(path).open(flags)

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory at `path`."""
        try:
            return isinstance(self.find(path), Directory)
        except OSError:
            return False

    def make(self, path: str) -> None:
        """Create a directory, in /tmp or in the tree. Raises OSError: EPERM elsewhere, and what the tree raises."""
        directory, name = posixpath.split(self.at(path))
        if self.inside(path) is None and isinstance(above := self.find(directory), TemporaryDirectory):
            above.make(name)
        else:
            self.tree.mkdir(self.in_tree(path))

    def remove_directory(self, path: str) -> None:
        """Remove a directory from /tmp or the tree. Raises OSError: EPERM elsewhere, and what the tree raises."""
        directory, name = posixpath.split(self.at(path))
        if self.inside(path) is None and isinstance(above := self.find(directory), TemporaryDirectory):
            if not isinstance(self.find(path), Directory):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            above.remove(name)
        else:
            self.tree.rmdir(self.in_tree(path))

    def in_tree(self, path: str) -> str:
        """As `inside`. Raises OSError(EPERM) if it is not in there."""
        inside = self.inside(path)
        if inside is None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        return inside

    def read(self, path: str) -> bytes:
        """Read a file to its end, a stream until it would block. Raises OSError."""
        with self.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
            return all_of(handle)

    def expand(self, pattern: str) -> list[str]:
        """The paths that a pattern with `*`, `?` or `[` matches, sorted."""
        found = ["/" if pattern.startswith("/") else ""]
        for part in pattern.strip("/").split("/"):
            found = [joined for path in found for joined in self._matching(path, part)]
        return sorted(found)

    def _matching(self, path: str, part: str) -> list[str]:
        try:
            node = self.find(path or ".")
        except OSError:
            return []
        names = (part,) if part in (".", "..") else node.entries if isinstance(node, Directory) else ()
        return [posixpath.join(path, name) for name in names if fnmatch.fnmatchcase(name, part)]

    def remove(self, path: str, *, with_content: bool = False) -> None:
        """Unlink a file in /tmp. `with_content`: also a directory, and all that is in it.

        Raises OSError: EPERM for any other file, ENOENT if there is none, EISDIR for a directory.
        """
        node = self.find(path)
        directory, name = posixpath.split(self.at(path))
        above = self.find(directory)
        if isinstance(node, Directory) and not with_content:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self.inside(path) is not None or not isinstance(above, TemporaryDirectory):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        del above.content[name]
