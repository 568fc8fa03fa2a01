"""The tree of files, accessed by paths.

    tracefs.write("kprobe_events", "p:myprobe vfs_read count=%dx", append=True)
    print(tracefs.read("events/kprobes/myprobe/format"))

Each package adds its files with `tracefs.add`.
"""

from __future__ import annotations

import errno
import os

from ftrace.tracing.files.nodes import ENCODING, Directory, Handle, HeldDirectory, Node, OpenFile
from sandbox.process.integers import INT_MAX, integer

_LONGEST_NAME = 255
"""NAME_MAX: bytes of a name."""


class Tracefs:
    """A tree of files with the kernel's semantics."""

    def __init__(self) -> None:
        self._top: dict[str, Node] = {}
        self.root = Directory(self._top)

    def add(self, name: str, node: Node) -> None:
        """Add a file or directory at the top of the tree. Raises OSError(EEXIST) if the name is taken."""
        if name in self._top:
            raise OSError(errno.EEXIST, f"tracefs already has a file {name!r}; choose another name")
        self._top[name] = node

    def find(self, path: str) -> Node:
        """The node at `path`, relative to the root. Raises OSError: ENOENT, ENOTDIR."""
        return self._walk(path)[-1]

    def shown(self, node: Node) -> Node:
        """The node that stands in this tree for the one of a directory."""
        return node

    def _walk(self, path: str) -> list[Node]:
        """The nodes from the root to `path`. Raises OSError: ENOENT, ENOTDIR."""
        nodes: list[Node] = [self.root]
        for name in path.lstrip("/").split("/") if path.strip("/") else ():
            node = nodes[-1]
            if not isinstance(node, Directory):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name in ("", "."):
                continue
            if name == "..":
                nodes = nodes[:-1] or nodes
                continue
            found = node.find(name)
            if found is None:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            nodes.append(self.shown(found))
        return nodes

    def open(self, path: str, flags: int = os.O_RDONLY) -> Handle:
        """Open a file with O_* flags.

        Raises OSError: ENOENT; EACCES for creating a file; EEXIST with O_EXCL; EISDIR for writing to a directory; ENOTDIR with
        O_DIRECTORY for a file; EINVAL for `flags` that are not an int of C; and what the file raises.
        """
        flags = integer("flags", flags, 0, INT_MAX)
        try:
            *above, node = self._walk(path)
        except FileNotFoundError:
            if flags & os.O_CREAT and self.is_directory(path.rpartition("/")[0]):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), path) from None
            raise
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if flags & os.O_DIRECTORY and not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return OpenFile(node, flags, next((each for each in above if isinstance(each, HeldDirectory)), None))

    def read(self, path: str) -> str:
        """Read the whole content of a file. Raises OSError."""
        with self.open(path) as handle:
            return handle.read().decode(ENCODING, "surrogateescape")

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        """Open a file, write `text` and close it, as `echo` with `>`, or with `>>` if `append`.

        A short write is continued. Raises OSError; what was accepted before the error stays in effect.
        """
        flags = os.O_WRONLY | (os.O_APPEND if append else os.O_TRUNC)
        data = text.encode(ENCODING, "surrogateescape")
        with self.open(path, flags) as handle:
            while data:
                data = data[handle.write(data) :]

    def listdir(self, path: str = "") -> list[str]:
        """The names in a directory, sorted. Raises OSError: ENOENT, ENOTDIR."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return sorted(node.entries)

    def is_directory(self, path: str) -> bool:
        """Whether a directory exists at `path`."""
        try:
            return isinstance(self.find(path), Directory)
        except OSError:
            return False

    def mkdir(self, path: str) -> None:
        """Create a directory. Raises OSError: EPERM outside instances/, EEXIST, ENAMETOOLONG, ENOENT, ENOTDIR."""
        parent, name = self._split(path)
        if name in ("", ".", "..") or parent.find(name) is not None:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if len(name.encode(ENCODING, "surrogateescape")) > _LONGEST_NAME:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        parent.make(name)

    def rmdir(self, path: str) -> None:
        """Remove a directory. Raises OSError: EPERM outside instances/, EBUSY for an open file in it, ENOENT, ENOTDIR."""
        parent, name = self._split(path)
        found = parent.find(name)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(found, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        parent.remove(name)

    def _split(self, path: str) -> tuple[Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        parent = self.find(head)
        if not isinstance(parent, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return parent, name


tracefs = Tracefs()
"""The tree of this process."""
