"""Files in memory, on which text and shared data are kept."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sandbox.memory.pages import check, libc

DENY = "FPROBE_DENY"
"""Environment variable: denied facilities, separated by commas."""


def is_denied(what: str) -> bool:
    """Whether the environment denies the facility `what` ('memfd', 'membarrier'), as a sandbox would."""
    return what in os.environ.get(DENY, "").split(",")


SCARCE = (errno.EMFILE, errno.ENFILE)
"""No descriptor is free now; that says nothing about which kind of file is available."""


def _memfd(name: str) -> int:
    """A descriptor of an empty file in memory. With the GIL, so that no other thread takes a number that was just closed."""
    if is_denied("memfd"):
        raise OSError(errno.ENOSYS, f"memfd is denied by {DENY}")
    descriptor = int(libc.memfd_create(os.fsencode(name), os.MFD_CLOEXEC))
    return check(None if descriptor < 0 else descriptor, f"memfd {name!r}")


def _backing(name: str) -> int:
    """A descriptor of an empty file that exists only in memory, or at least in no directory."""
    try:
        return _memfd(name)
    except OSError as error:
        if error.errno in SCARCE:
            raise
    import tempfile

    for directory in ("/dev/shm", tempfile.gettempdir(), str(Path.home())):
        try:
            descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno in SCARCE:
                raise
            continue
        if not os.fstatvfs(descriptor).f_flag & os.ST_NOEXEC:
            return descriptor
        os.close(descriptor)
    raise OSError(errno.EACCES, "neither memfd nor an executable temporary file is available: text cannot be patched")


def filled(contents: bytes | int, name: str) -> int:
    """A descriptor of a file holding `contents`, or that many zero bytes."""
    fd = _backing(name)
    if isinstance(contents, int):
        os.ftruncate(fd, contents)
    else:
        view = memoryview(contents)
        while view:
            view = view[os.write(fd, view) :]
    return fd


def sparse_backing(name: str, size: int) -> int:
    """A descriptor of a file of `size` bytes, which takes memory only where it is written."""
    return filled(size, name)


def close(descriptor: int) -> None:
    """Close a descriptor with the GIL, so that no other thread of Python's takes its number before the caller does."""
    libc.close(descriptor)
