"""The files of the shell: tracefs as the current directory, kprobes/ of debugfs, the sysctls, and a private /tmp."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Callable

from ftrace.files.sysctl import ftrace_enabled, set_ftrace_enabled, set_stack_tracer_enabled, stack_tracer_enabled
from ftrace.kstrtox import simple_strtoul
from ftrace.tracefs.nodes import Directory, Handle, Node, TextFile
from ftrace.tracefs.tree import Tracefs
from kprobes import kprobes_optimization, set_kprobes_optimization
from kprobes.events.debugfs import debugfs

TRACEFS = "/sys/kernel/tracing/"


class TemporaryFile(Node):
    """A plain file in /tmp. It ends with the shell."""

    mode = 0o644

    def __init__(self) -> None:
        self.content = b""

    def open(self, flags: int) -> Handle:
        if flags & os.O_TRUNC:
            self.content = b""
        return _TemporaryHandle(self)


class _TemporaryHandle(Handle):
    def __init__(self, file: TemporaryFile) -> None:
        self._file, self._position = file, 0

    def read(self, size: int = -1) -> bytes:
        end = None if size < 0 else self._position + size
        taken = self._file.content[self._position : end]
        self._position += len(taken)
        return taken

    def write(self, data: bytes) -> int:
        self._file.content += data
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


_OUTSIDE: dict[str, Node] = {
    "/sys/kernel/debug/kprobes": debugfs.find("kprobes"),
    "/proc/sys/debug/kprobes-optimization": _sysctl(kprobes_optimization, set_kprobes_optimization),
    "/proc/sys/kernel/ftrace_enabled": _sysctl(ftrace_enabled, set_ftrace_enabled),
    "/proc/sys/kernel/stack_tracer_enabled": _sysctl(stack_tracer_enabled, set_stack_tracer_enabled),
}


class Files:
    """The shell's files by path. Relative paths, and paths below /sys/kernel/tracing, are in `tree`.

    `opened`: called with each path that is opened.
    """

    def __init__(self, tree: Tracefs, opened: Callable[[str], None] = lambda _path: None) -> None:
        self.tree = tree
        self._opened = opened
        self._temporary: dict[str, TemporaryFile] = {}

    def find(self, path: str) -> Node:
        """The node at `path`. Raises OSError."""
        if path in self._temporary:
            return self._temporary[path]
        for prefix, node in _OUTSIDE.items():
            if path == prefix:
                return node
            if path.startswith(prefix + "/") and isinstance(node, Directory):
                found = node.entries.get(path[len(prefix) + 1 :])
                if found is not None:
                    return found
        if path.startswith("/") and not (path + "/").startswith(TRACEFS):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.tree.find(self.inside(path))

    @staticmethod
    def inside(path: str) -> str:
        """The path relative to the root of the tree."""
        return path.removeprefix(TRACEFS)

    def open(self, path: str, flags: int) -> Handle:
        """Open a file with O_* flags; O_CREAT creates files in /tmp. Raises OSError."""
        self._opened(path)
        if path == "/dev/null":
            return _TemporaryHandle(TemporaryFile())
        if path.startswith("/tmp/") and path not in self._temporary and flags & os.O_CREAT:
            self._temporary[path] = TemporaryFile()
        if path.startswith("/") and not path.startswith(TRACEFS):
            return self.find(path).open(flags)
        return self.tree.open(self.inside(path), flags)

    def read(self, path: str) -> bytes:
        """Read a file to its end, a stream until it would block. Raises OSError."""
        with self.open(path, os.O_RDONLY | os.O_NONBLOCK) as handle:
            return all_of(handle)

    def expand(self, word: str) -> list[str]:
        """The paths that a word with `*`, `?` or `[` matches, sorted; the word itself if nothing matches."""
        if not any(letter in word for letter in "*?["):
            return [word]
        found = [""]
        for part in word.split("/"):
            found = [joined for path in found for joined in self._matching(path, part)]
        return sorted(found) or [word]

    def _matching(self, path: str, part: str) -> list[str]:
        try:
            node = self.find(path) if path else self.tree.root
        except OSError:
            return []
        if not isinstance(node, Directory):
            return []
        return [f"{path}/{name}" if path else name for name in node.entries if fnmatch.fnmatchcase(name, part)]

    def remove(self, path: str) -> None:
        """Unlink a file in /tmp. Raises OSError: EPERM for any other file, ENOENT if there is none."""
        if self._temporary.pop(path, None) is None:
            self.find(path)
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
