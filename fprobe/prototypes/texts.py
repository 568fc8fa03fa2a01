"""Arguments as text, in the words of the manual pages: `O_RDONLY|O_CLOEXEC`, `0644`, `{sa_family=AF_INET, ...}`."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence

from fprobe.prototypes import constants
from sandbox.process.printable import quoted

UNREADABLE = "?"
_ACCMODE, _MAP_TYPE, _SOCKET_TYPE = 3, 0xF, 0xF
_O_CREAT, _O_TMPFILE = 0o100, 0o20200000
_AT_FDCWD = -100
_STAT = struct.Struct("<24xI20xq")
"""The mode and the size in a struct stat of x86-64."""
_PLAIN_COMMANDS = ("F_GETFD", "F_GETFL", "F_GETOWN", "F_GETSIG", "F_GETLEASE", "F_GETPIPE_SZ", "F_GET_SEALS")
_COMMAND_ARGUMENTS = {"F_SETFD": "fd", "F_SETFL": "open", "F_ADD_SEALS": "seals"}
_TYPES = {0o140000: "S_IFSOCK", 0o120000: "S_IFLNK", 0o100000: "S_IFREG", 0o060000: "S_IFBLK", 0o040000: "S_IFDIR",
          0o020000: "S_IFCHR", 0o010000: "S_IFIFO"}  # fmt: skip


def error_text(number: int) -> str:
    """`ENOENT (No such file or directory)`."""
    return f"{errno.errorcode.get(number, number)} ({os.strerror(number)})"


def data_text(data: bytes, is_cut: bool) -> str:
    """Bytes in double quotes, with `...` behind if there are more."""
    return quoted(data.decode("utf-8", "surrogateescape")) + "..." * is_cut


def number_text(meaning: str, value: int, values: Sequence[int | None]) -> str | None:
    """A number by its meaning; None if that is none of a number. `values`: of all arguments."""
    word, _, at = meaning.partition(":")
    if word in _NUMBERS:
        return _NUMBERS[word](value)
    if word == "sockopt":
        return _option(value, values[int(at)])
    if word == "fcntl_argument":
        return _fcntl_argument(value, values[int(at)])
    if word in constants.WANTED:
        is_mask = word in _MASKS
        return constants.flags(value & 0xFFFFFFFF, word) if is_mask else constants.named(value, word)
    return None


def is_given(meaning: str, values: Sequence[int | None]) -> bool:
    """Whether a caller passes an argument of a variable number, which depends on others."""
    if meaning == "mode":
        flags = values[-2]
        return flags is not None and bool(flags & _O_CREAT or flags & _O_TMPFILE == _O_TMPFILE)
    if meaning == "fcntl_argument:1":
        return constants.named(values[1] or 0, "fcntl") not in _PLAIN_COMMANDS
    return True


def target_text(meaning: str, data: bytes, full: int) -> str | None:
    """What a pointer leads to, by its meaning; None if nothing is known about it. `full`: bytes that there are."""
    word = meaning.partition(":")[0]
    if word in ("in", "out"):
        return data_text(data, full > len(data))
    if word in ("address", "address_out"):
        return address_text(data)
    if word == "stat":
        mode, size = _STAT.unpack_from(data)
        kind = _TYPES.get(stat.S_IFMT(mode), hex(stat.S_IFMT(mode)))
        return f"{{st_mode={kind}|{stat.S_IMODE(mode):04o}, st_size={size}, ...}}"
    if word == "pair":
        return "[{}, {}]".format(*struct.unpack_from("<2i", data))
    return str(struct.unpack_from("<i", data)[0]) if word == "status" else None


def address_text(data: bytes) -> str:
    """A socket's address."""
    if len(data) < 2:
        return UNREADABLE
    (family,) = struct.unpack_from("<H", data)
    name = constants.named(family, "family")
    if name == "AF_INET" and len(data) >= 8:
        (port,) = struct.unpack_from(">H", data, 2)
        return f'{{sa_family={name}, sin_port=htons({port}), sin_addr=inet_addr("{socket.inet_ntoa(data[4:8])}")}}'
    if name == "AF_INET6" and len(data) >= 28:
        port, flow = struct.unpack_from(">HI", data, 2)
        host = socket.inet_ntop(socket.AF_INET6, data[8:24])
        (scope,) = struct.unpack_from("<I", data, 24)
        return (
            f"{{sa_family={name}, sin6_port=htons({port}), sin6_flowinfo=htonl({flow}), "
            f'inet_pton(AF_INET6, "{host}", &sin6_addr), sin6_scope_id={scope}}}'
        )
    if name == "AF_UNIX" and len(data) > 2:
        path = data[2:]
        shown = "@" + data_text(path[1:], False) if path[:1] == b"\0" else data_text(path.partition(b"\0")[0], False)
        return f"{{sa_family={name}, sun_path={shown}}}"
    return f"{{sa_family={name}}}"


def _mode(value: int) -> str:
    return f"{value & 0o7777:#05o}".replace("0o", "0") if value & 0o7777 else "000"


def _map(value: int) -> str:
    return constants.flags(value & 0xFFFFFFFF, "map", "map.type", _MAP_TYPE)


def _socket_type(value: int) -> str:
    return constants.flags(value & 0xFFFFFFFF, "socket", "socket.type", _SOCKET_TYPE)


def _open(value: int) -> str:
    shown = constants.flags(value & 0xFFFFFFFF, "open", "accmode", _ACCMODE)
    return shown.replace("__O_TMPFILE", "O_TMPFILE")


def _protocol(value: int) -> str:
    return constants.named(value, "protocol")


def _access(value: int) -> str:
    return constants.flags(value, "access") if value else "F_OK"


_NUMBERS: dict[str, Callable[[int], str]] = {
    "mode": _mode,
    "open": _open,
    "map": _map,
    "socket": _socket_type,
    "protocol": _protocol,
    "access": _access,
    "dirfd": lambda value: "AT_FDCWD" if value == _AT_FDCWD else str(value),
    "prot": lambda value: constants.flags(value & 0xFFFFFFFF, "prot") if value else "PROT_NONE",
    "socket.flags": lambda value: constants.flags(value & 0xFFFFFFFF, "socket"),
    "hex": lambda value: hex(value & 0xFFFFFFFFFFFFFFFF),
    "ioctl": lambda value: constants.groups()["ioctl"].get(value & 0xFFFFFFFF, hex(value & 0xFFFFFFFF)),
}
_MASKS = frozenset(
    ("at", "at.access", "msync", "mremap", "msg", "pipe", "dup", "wait", "epoll.create", "eventfd", "flock", "dlopen")
) | {"memfd", "random"}


def _option(value: int, level: int | None) -> str:
    named = constants.named(level or 0, "sol")
    group = {"SOL_SOCKET": "so", "IPPROTO_TCP": "tcp"}.get(named)
    return constants.named(value, group) if group else str(value)


def _fcntl_argument(value: int, command: int | None) -> str:
    name = constants.named(command or 0, "fcntl")
    if name == "F_SETFL":
        return _open(value)
    if name in _COMMAND_ARGUMENTS:
        return constants.flags(value & 0xFFFFFFFF, _COMMAND_ARGUMENTS[name])
    if name in ("F_DUPFD", "F_DUPFD_CLOEXEC", "F_SETOWN", "F_SETSIG", "F_SETPIPE_SZ"):
        return str(value if value < 1 << 31 else value - (1 << 32))
    return hex(value & 0xFFFFFFFFFFFFFFFF)
