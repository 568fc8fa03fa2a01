"""The files of the shell: tracefs, where it begins, kprobes/ of debugfs, the sysctls, and a private /tmp."""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
from collections.abc import Callable, Mapping

from ftrace.files.sysctl import ftrace_enabled, set_ftrace_enabled, set_stack_tracer_enabled, stack_tracer_enabled
from ftrace.kstrtox import simple_strtoul
from ftrace.tracefs.nodes import Directory, Handle, Node, TextFile
from ftrace.tracefs.tree import Tracefs
from kprobes import kprobes_optimization, set_kprobes_optimization
from kprobes.events.debugfs import debugfs

TRACEFS = "/sys/kernel/tracing"
_ONCE = "/sys/kernel/debug/tracing"
_TEMPORARY = "/tmp"


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


def all_of(handle: Handle) -> bytes:
    """Read an open file to its end, a stream until it would block. Raises OSError."""
    try:
        return handle.read()
    except BlockingIOError:
        return b""


_INT_MAX = (1 << 31) - 1


def _number(text: str) -> int:
    """The first number of the text, as proc_dointvec() takes it: up to a blank, of any base. Raises OSError(EINVAL)."""
    word = (text.split() or [""])[0]
    digits = word.removeprefix("-")
    value, rest = simple_strtoul(digits)
    if rest or not digits[:1].isdigit() or value > _INT_MAX + (digits != word):
        raise OSError(errno.EINVAL, f"{text.strip()!r} is not a number of 32 bits")
    return value if digits == word else -value


def _sysctl(read: Callable[[], int], write: Callable[[int], None]) -> TextFile:
    return TextFile(lambda: f"{int(read())}\n", lambda text: write(_number(text)))


def _outside(tracing: Directory, temporary: Mapping[str, Node]) -> Directory:
    """The paths that a script finds below /."""
    kernel = Directory(
        {"tracing": tracing, "debug": Directory({"kprobes": debugfs.find("kprobes"), "tracing": tracing})}
    )
    sysctls = {
        "debug": Directory({"kprobes-optimization": _sysctl(kprobes_optimization, set_kprobes_optimization)}),
        "kernel": Directory(
            {
                "ftrace_enabled": _sysctl(ftrace_enabled, set_ftrace_enabled),
                "stack_tracer_enabled": _sysctl(stack_tracer_enabled, set_stack_tracer_enabled),
            }
        ),
    }
    return Directory(
        {
            "dev": Directory({"null": _Null()}),
            "proc": Directory({"sys": Directory(sysctls)}),
            "sys": Directory({"kernel": kernel}),
            "tmp": Directory(temporary),
        }
    )


class _Null(Node):
    """/dev/null."""

    def open(self, flags: int) -> Handle:
        return _TemporaryHandle(TemporaryFile())


class Files:
    """The shell's files by path. `tree` is at /sys/kernel/tracing and, as before 4.1, at /sys/kernel/debug/tracing.

    `directory`: the current directory, from / on. `opened`: called with each path that is opened, and the flags.
    """

    def __init__(self, tree: Tracefs, opened: Callable[[str, int], None] = lambda _path, _flags: None) -> None:
        self.tree = tree
        self.directory = TRACEFS
        self._opened = opened
        self._temporary: dict[str, Node] = {}
        self._root = _outside(tree.root, self._temporary)

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
        directory, name = posixpath.split(self.at(path))
        if directory == _TEMPORARY and flags & os.O_CREAT:
            self._temporary.setdefault(name, TemporaryFile())
        return self.find(path).open(flags)

    def make(self, path: str) -> None:
        """Create a directory in the tree. Raises OSError: EPERM elsewhere, and what the tree raises."""
        self.tree.mkdir(self.in_tree(path))

    def remove_directory(self, path: str) -> None:
        """Remove a directory from the tree. Raises OSError: EPERM elsewhere, and what the tree raises."""
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

    def expand(self, word: str) -> list[str]:
        """The paths that a word with `*`, `?` or `[` matches, sorted; the word itself if nothing matches."""
        if not any(letter in word for letter in "*?["):
            return [word]
        found = ["/" if word.startswith("/") else ""]
        for part in word.strip("/").split("/"):
            found = [joined for path in found for joined in self._matching(path, part)]
        return sorted(found) or [word]

    def _matching(self, path: str, part: str) -> list[str]:
        try:
            node = self.find(path or ".")
        except OSError:
            return []
        names = (part,) if part in (".", "..") else node.entries if isinstance(node, Directory) else ()
        return [posixpath.join(path, name) for name in names if fnmatch.fnmatchcase(name, part)]

    def remove(self, path: str) -> None:
        """Unlink a file in /tmp. Raises OSError: EPERM for any other file, ENOENT if there is none."""
        directory, name = posixpath.split(self.at(path))
        if directory != _TEMPORARY or self._temporary.pop(name, None) is None:
            self.find(path)
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
