"""Messages of the FUSE protocol (version 7, include/uapi/linux/fuse.h) as far as a tree of virtual files needs them."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import NamedTuple

VERSION, MINOR = 7, 31
ROOT = 1
"""The node id of the mount's top."""


class Opcode(enum.IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    POLL = 40
    BATCH_FORGET = 42
    RENAME2 = 45


UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.DESTROY})

_IN = struct.Struct("<IIQQIIIHH")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4QII")
_ATTR_OUT = struct.Struct("<QII")
_TRANSFER = struct.Struct("<QQIIQII")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_DIRENT = struct.Struct("<QQII")
_INIT_OUT = struct.Struct("<4I2H2I2H2I12H")
_STATFS = struct.Struct("<5Q4I24x")
_TWO = struct.Struct("<II")
_WORD = struct.Struct("<Q")
_POLL = struct.Struct("<QQII")
_OPENED = struct.Struct("<QII")

_ATOMIC_O_TRUNC, _BIG_WRITES, _PARALLEL_DIROPS, _MAX_PAGES = 1 << 3, 1 << 5, 1 << 18, 1 << 22
_PAGES = 256
MAX_WRITE = _PAGES * 4096
"""The most bytes of one write request."""
REQUEST_SIZE = MAX_WRITE + 4096
"""A buffer that holds any request."""

_READ_AHEAD = 0
"""What splice() read ahead would be consumed, and lost when the file is closed."""

DIRECT_IO, NONSEEKABLE, NO_FLUSH, STREAM = 1, 1 << 2, 1 << 5, 1 << 4
"""FOPEN_*: reads and writes come here as they are; no seeks; nothing to do at close(); no position at all."""
_MODE, _UID, _GID, _SIZE = 1, 2, 4, 8
"""FATTR_*: what a SETATTR changes."""
_NOTIFY_POLL = 1
_LONG = 1 << 20
"""Seconds for which the kernel does not ask again."""


class Request(NamedTuple):
    """A request: of thread `pid`, about the file `node`. `body`: what follows the header."""

    opcode: int
    unique: int
    node: int
    pid: int
    body: bytes


class Transfer(NamedTuple):
    """The body of a read or write. `flags`: the O_* flags that the file has now, which may differ from those of its open()."""

    handle: int
    offset: int
    size: int
    flags: int
    data: bytes


class Attributes(NamedTuple):
    """What stat() shows. `mode`: type and permission bits. `time`: of mounting, in seconds. `lasts`: only chmod() changes it."""

    inode: int
    size: int
    mode: int
    links: int
    uid: int
    gid: int
    time: int
    lasts: bool


class Change(NamedTuple):
    """The body of truncate(), chmod() and chown(). `mode`: permission bits; None: this is not changed."""

    truncates: bool
    mode: int | None
    uid: int | None
    gid: int | None


def request(data: bytes) -> Request:
    """Read a request."""
    length, opcode, unique, node, _uid, _gid, pid, _, _ = _IN.unpack_from(data)
    return Request(opcode, unique, node, pid, data[_IN.size : length])


def reply(unique: int, body: bytes = b"") -> bytes:
    """The answer to a request that succeeded."""
    return _OUT.pack(_OUT.size + len(body), 0, unique) + body


def failure(unique: int, error: int) -> bytes:
    """The answer to a request that failed with errno `error`."""
    return _OUT.pack(_OUT.size, -error, unique)


def poll_notice(poll: int) -> bytes:
    """The notice that a file has become readable; `poll` is from `poll_request`."""
    return _OUT.pack(_OUT.size + _WORD.size, _NOTIFY_POLL, 0) + _WORD.pack(poll)


def name_in(body: bytes) -> str:
    """The name that a body is, or ends with."""
    return body.rstrip(b"\0").decode("utf-8", "surrogateescape")


def mkdir_name(body: bytes) -> str:
    return name_in(body[_TWO.size :])


def open_flags(body: bytes) -> int:
    """The O_* flags in the body of OPEN."""
    return int(_TWO.unpack_from(body)[0])


def handle_in(body: bytes) -> int:
    """The file handle that a body begins with."""
    return int(_WORD.unpack_from(body)[0])


def transfer(body: bytes) -> Transfer:
    """The body of READ, READDIR and WRITE."""
    handle, offset, size, _, _, flags, _ = _TRANSFER.unpack_from(body)
    return Transfer(handle, offset, size, flags, body[_TRANSFER.size :])


def change(body: bytes) -> Change:
    """The body of SETATTR."""
    what, *_, mode, _, uid, gid, _ = _SETATTR.unpack_from(body)
    return Change(
        bool(what & _SIZE),
        mode & 0o7777 if what & _MODE else None,
        uid if what & _UID else None,
        gid if what & _GID else None,
    )


def poll_request(body: bytes) -> tuple[int, int]:
    """The body of POLL: the file handle, and the number of the poll for `poll_notice`."""
    handle, poll, _, _ = _POLL.unpack_from(body)
    return handle, poll


def interrupted(body: bytes) -> int:
    """The body of INTERRUPT: the number of the request that a signal ends."""
    return handle_in(body)


def init_reply(body: bytes) -> bytes:
    """The answer to INIT. Raises ValueError for a kernel without this version of the protocol."""
    major, minor = _TWO.unpack_from(body)
    if major != VERSION or minor < MINOR:
        raise ValueError(f"the kernel speaks FUSE {major}.{minor}; {VERSION}.{MINOR} is needed (Linux 5.4)")
    flags = _ATOMIC_O_TRUNC | _BIG_WRITES | _PARALLEL_DIROPS | _MAX_PAGES
    return _INIT_OUT.pack(VERSION, MINOR, _READ_AHEAD, flags, 64, 48, MAX_WRITE, 1, _PAGES, 0, 0, 0, *[0] * 12)


def attributes(of: Attributes) -> bytes:
    """The answer to GETATTR and SETATTR."""
    return _ATTR_OUT.pack(_LONG * of.lasts, 0, 0) + _attr(of)


def entry(of: Attributes, lasts: bool) -> bytes:
    """The answer to LOOKUP and MKDIR. Unless the entry `lasts`, the kernel asks again at each access: as events come and go."""
    return _ENTRY.pack(of.inode, 0, _LONG * lasts, _LONG * of.lasts, 0, 0) + _attr(of)


def _attr(of: Attributes) -> bytes:
    return _ATTR.pack(
        of.inode, of.size, 0, of.time, of.time, of.time, 0, 0, 0, of.mode, of.links, of.uid, of.gid, 0, 4096, 0
    )


def opened(handle: int, flags: int) -> bytes:
    """The answer to OPEN and OPENDIR."""
    return _OPENED.pack(handle, flags, 0)


def written(size: int) -> bytes:
    """The answer to WRITE."""
    return _TWO.pack(size, 0)


def polled(events: int) -> bytes:
    """The answer to POLL."""
    return _TWO.pack(events, 0)


def statistics() -> bytes:
    """The answer to STATFS: a file system without blocks."""
    return _STATFS.pack(0, 0, 0, 0, 0, 4096, 255, 4096, 0)


def listing(entries: Iterable[tuple[int, int, str]], start: int, size: int) -> bytes:
    """The answer to READDIR: (inode, type, name) of the entries from number `start` on, as many as fit `size` bytes."""
    parts, used = [], 0
    for number, (inode, kind, name) in enumerate(entries):
        if number < start:
            continue
        text = name.encode("utf-8", "surrogateescape")
        record = _DIRENT.pack(inode, number + 1, len(text), kind) + text + bytes(-len(text) % 8)
        if used + len(record) > size:
            break
        parts.append(record)
        used += len(record)
    return b"".join(parts)
