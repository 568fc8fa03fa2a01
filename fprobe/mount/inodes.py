"""Inode numbers: each path has one, which stays the same while the tree is mounted, also when the file goes and comes again."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from fprobe.mount.messages import ROOT, Attributes, Change
from ftrace.tracing.files.nodes import Directory, Node


class Inodes:
    """The numbers of the paths that have been looked up, and the owners and modes that have been set for them."""

    def __init__(self) -> None:
        self._paths = {ROOT: ""}
        self._numbers = {"": ROOT}
        self._set: dict[int, tuple[int, int, int]] = {}
        """Inode -> mode, uid and gid, where chmod() or chown() has changed one."""
        self._lock = threading.Lock()
        self._time = int(time.time())

    def path(self, inode: int) -> str:
        """The path of a number. Raises OSError(ENOENT) for one that was never given."""
        found = self._paths.get(inode)
        if found is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def child(self, parent: int, name: str) -> str:
        """The path of the entry `name` of a directory."""
        above = self.path(parent)
        return f"{above}/{name}" if above else name

    def number(self, path: str) -> int:
        with self._lock:
            found = self._numbers.get(path)
            if found is None:
                found = self._numbers[path] = len(self._numbers) + ROOT
                self._paths[found] = path
            return found

    def attributes(self, path: str, node: Node) -> Attributes:
        """What stat() of a node shows."""
        inode = self.number(path)
        kind = stat.S_IFDIR if isinstance(node, Directory) else stat.S_IFREG
        mode, uid, gid = self._owned(inode, path, node)
        return Attributes(
            inode, node.size, kind | mode, node.links, uid, gid, self._time, not path or kind == stat.S_IFREG
        )

    def _owned(self, inode: int, path: str, node: Node) -> tuple[int, int, int]:
        return self._set.get(inode) or (node.mode if path else 0o700, os.geteuid(), os.getegid())

    def set(self, path: str, node: Node, change: Change) -> None:
        """chmod() and chown()."""
        inode = self.number(path)
        mode, uid, gid = self._owned(inode, path, node)
        self._set[inode] = (
            mode if change.mode is None else change.mode,
            uid if change.uid is None else change.uid,
            gid if change.gid is None else change.gid,
        )
