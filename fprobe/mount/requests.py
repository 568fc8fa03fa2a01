"""The requests of the kernel, carried out on the tree."""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fprobe.mount import messages
from fprobe.mount.inodes import Inodes
from fprobe.mount.messages import Opcode, Request
from ftrace.tracing.files.nodes import Directory, Handle
from ftrace.tracing.tracefs.tree import Tracefs

_TYPES = {True: stat.S_IFDIR >> 12, False: stat.S_IFREG >> 12}
_READABLE, _WRITABLE = select.POLLIN | select.POLLRDNORM, select.POLLOUT | select.POLLWRNORM


@dataclass
class Opened:
    """An open file. `position`: the offset of a request that goes on where the last one ended, also after a write."""

    handle: Handle
    position: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class WouldWait(Exception):
    """A read of a pipe that has nothing to read now: `opened` is to be asked again."""

    def __init__(self, opened: Opened, size: int) -> None:
        super().__init__()
        self.opened, self.size = opened, size


class Requests:
    """The files that are open through one mount, and what each request does. The answers are bodies of replies."""

    def __init__(self, tree: Tracefs) -> None:
        self._tree = tree
        self._inodes = Inodes()
        self._opened: dict[int, Opened] = {}
        self._listings: dict[int, list[tuple[int, int, str]]] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._actions: dict[int, Callable[[Request], bytes]] = {
            Opcode.INIT: lambda it: messages.init_reply(it.body),
            Opcode.LOOKUP: self._look_up,
            Opcode.GETATTR: self._attributes,
            Opcode.SETATTR: self._change,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._open_directory,
            Opcode.READDIR: self._list,
            Opcode.RELEASEDIR: self._release_directory,
            Opcode.MKDIR: self._make_directory,
            Opcode.RMDIR: self._remove_directory,
            Opcode.STATFS: lambda _: messages.statistics(),
            Opcode.CREATE: _refuse(errno.EACCES),
            Opcode.MKNOD: _refuse(errno.EACCES),
            **dict.fromkeys(
                (Opcode.UNLINK, Opcode.SYMLINK, Opcode.LINK, Opcode.RENAME, Opcode.RENAME2), _refuse(errno.EPERM)
            ),
        }

    def path(self, request: Request) -> str:
        """The path of the file that a request is about; "" if it is about none."""
        try:
            return self._inodes.path(request.node)
        except OSError:
            return ""

    def answer(self, request: Request) -> bytes:
        """Carry out a request. Raises OSError: ENOSYS for one that is not needed here; WouldWait."""
        action = self._actions.get(request.opcode)
        if action is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return action(request)

    # -- names and attributes -----------------------------------------------------------------------------------

    def _look_up(self, request: Request) -> bytes:
        path = self._inodes.child(request.node, messages.name_in(request.body))
        return messages.entry(self._inodes.attributes(path, self._tree.find(path)), lasts="/" not in path)

    def _attributes(self, request: Request) -> bytes:
        path = self._inodes.path(request.node)
        return messages.attributes(self._inodes.attributes(path, self._tree.find(path)))

    def _change(self, request: Request) -> bytes:
        path = self._inodes.path(request.node)
        node, change = self._tree.find(path), messages.change(request.body)
        if change.truncates:
            self._tree.open(path, os.O_WRONLY | os.O_TRUNC).close()
        if change[1:] != (None, None, None):
            self._inodes.set(path, node, change)
        return messages.attributes(self._inodes.attributes(path, node))

    # -- files --------------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        flags = messages.open_flags(request.body)
        # A read decides by the flags of that read whether it waits: the handle itself never does.
        opened = Opened(self._tree.open(self._inodes.path(request.node), flags | os.O_NONBLOCK))
        with self._lock:
            self._last += 1
            self._opened[self._last] = opened
            kind = messages.DIRECT_IO | messages.NO_FLUSH
            kind |= messages.NONSEEKABLE | messages.STREAM if opened.handle.is_stream else 0
            return messages.opened(self._last, kind)

    def _read(self, request: Request) -> bytes:
        asked = messages.transfer(request.body)
        opened = self._opened[asked.handle]
        if opened.handle.is_stream:
            data = self.read_stream(opened, asked.size)
            if not data and asked.flags & os.O_NONBLOCK:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            if data is None:
                raise WouldWait(opened, asked.size)
            return data
        with opened.lock:
            if asked.offset != opened.position:
                opened.handle.seek(asked.offset)
            data = opened.handle.read(asked.size)
            opened.position = asked.offset + len(data)
            return data

    @staticmethod
    def read_stream(opened: Opened, size: int) -> bytes | None:
        """Read from a pipe; None if there is nothing to read now."""
        with opened.lock:
            return opened.handle.read_now(size)

    def _write(self, request: Request) -> bytes:
        asked = messages.transfer(request.body)
        opened = self._opened[asked.handle]
        with opened.lock:
            taken = opened.handle.write(asked.data[: asked.size])
            opened.position = asked.offset + taken
            return messages.written(taken)

    def _release(self, request: Request) -> bytes:
        opened = self._opened.pop(messages.handle_in(request.body), None)
        if opened is not None:
            opened.handle.close()
        return b""

    def is_slow(self, request: Request) -> bool:
        """Whether a write may take as long as a program's call."""
        return self._opened[messages.handle_in(request.body)].handle.is_slow

    def file(self, handle: int) -> Opened:
        """The open file of a number."""
        return self._opened[handle]

    @staticmethod
    def ready(opened: Opened) -> int:
        """What poll() says of an open file now: POLLIN and others."""
        return _WRITABLE | (_READABLE if opened.handle.poll(0.0) else 0)

    def close(self) -> None:
        """Close all files."""
        for opened in list(self._opened.values()):
            opened.handle.close()
        self._opened.clear()

    # -- directories --------------------------------------------------------------------------------------------

    def _open_directory(self, request: Request) -> bytes:
        path = self._inodes.path(request.node)
        node = self._tree.find(path)
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        above = path.rpartition("/")[0]
        entries = [(self._inodes.number(path), _TYPES[True], "."), (self._inodes.number(above), _TYPES[True], "..")]
        for name, entry in node.entries.items():
            inode = self._inodes.number(self._inodes.child(request.node, name))
            entries.append((inode, _TYPES[isinstance(entry, Directory)], name))
        with self._lock:
            self._last += 1
            self._listings[self._last] = entries
            return messages.opened(self._last, 0)

    def _list(self, request: Request) -> bytes:
        asked = messages.transfer(request.body)
        return messages.listing(self._listings[asked.handle], asked.offset, asked.size)

    def _release_directory(self, request: Request) -> bytes:
        self._listings.pop(messages.handle_in(request.body), None)
        return b""

    def _make_directory(self, request: Request) -> bytes:
        path = self._inodes.child(request.node, messages.mkdir_name(request.body))
        self._tree.mkdir(path)
        return messages.entry(self._inodes.attributes(path, self._tree.find(path)), lasts=False)

    def _remove_directory(self, request: Request) -> bytes:
        self._tree.rmdir(self._inodes.child(request.node, messages.name_in(request.body)))
        return b""


def _refuse(error: int) -> Callable[[Request], bytes]:
    def refuse(_request: Request) -> bytes:
        raise OSError(error, os.strerror(error))

    return refuse
