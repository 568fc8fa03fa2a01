"""What a shell's descriptors are: open files, what collects output, and the redirections that put them there."""

from __future__ import annotations

import errno
import os
from typing import Any

from ftrace.tracing.files.nodes import Handle
from tests.busybox.files import Files, TemporaryFile

Descriptors = dict[int, Any]
"""A command's open handles and sinks, by descriptor number; None: empty input."""


class Sink:
    """Collects what is written to standard output or error."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> int:
        """Append the data, and return its length."""
        self.data += data
        return len(data)


class _Closed(Handle):
    """A descriptor that was closed."""

    def read(self, size: int = -1) -> bytes:
        """Raises OSError(EBADF)."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, data: bytes) -> int:
        """Raises OSError(EBADF)."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


_CLOSED = _Closed()
_FLAGS = {
    ">": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    ">|": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    ">>": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "<": os.O_RDONLY | os.O_NONBLOCK,
    "<>": os.O_RDWR | os.O_CREAT | os.O_NONBLOCK,
}
"""How files are opened. Who reads them waits for data where that makes sense."""


def redirected(files: Files, operator: str, target: str, fds: Descriptors, opened: list[Handle]) -> Any:
    """What a redirection makes of its descriptor. A file that it opens is added to `opened`. Raises OSError."""
    if operator.startswith("<<"):
        return reader(target.encode("utf-8", "surrogateescape"))
    if operator.endswith("&"):
        if target == "-":
            return _CLOSED
        if not target.isdigit() or isinstance(fds.get(int(target), _CLOSED), _Closed):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return fds[int(target)]
    handle = files.open(target, _FLAGS[operator])
    opened.append(handle)
    return handle


def refusal(operator: str, target: str, failed: OSError) -> str:
    """The error message for a redirection that is not possible."""
    if failed.errno == errno.EBADF:
        return f"sh: {target}: {os.strerror(errno.EBADF)}\n"
    reads, reason = operator == "<", os.strerror(failed.errno or 0)
    if failed.errno == errno.ENOENT:
        reason = "no such file" if reads else "nonexistent directory"
    return f"sh: can't {'open' if reads else 'create'} {target}: {reason}\n"


def reader(data: bytes) -> Handle:
    """Data as an open file."""
    file = TemporaryFile()
    file.content = data
    return file.open(os.O_RDONLY)
