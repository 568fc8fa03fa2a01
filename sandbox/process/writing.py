"""Files to write, and writing text and bytes to descriptors, which may take less than they are given."""

from __future__ import annotations

import errno
import os
import stat

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The errors of a file that cannot grow."""


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, a sequence of bytes. Raises OSError; data written before the error stays written."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def as_bytes(text: str) -> bytes:
    """Text as UTF-8. Names that are not UTF-8 become the bytes that they have in the system."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that Python has not made
        return text.encode("utf-8", "replace")


def emptied(path: str, *, locked: bool = False) -> int:
    """A descriptor of a regular file of that name, emptied, for its owner alone; `locked`: which no other process writes so.

    Raises OSError: EEXIST if it is no regular file, EBUSY if another process holds the lock.
    """
    descriptor = opened(path, locked=locked)
    try:
        empty(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def empty(descriptor: int) -> None:
    """Delete the content of a regular file, which is for its owner alone from now on. Raises OSError."""
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, 0)


def opened(path: str, *, locked: bool = False) -> int:
    """The same as `emptied`, with the content that the file has: for what may turn out to have nothing to write."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(errno.EEXIST, "not a regular file; give another name with -o", path)
        if locked:
            _lock(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def existing(path: str, *, locked: bool = False) -> int:
    """A descriptor of a file that there is already, as it is; `locked` as for `emptied`. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if locked:
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def _lock(descriptor: int, path: str) -> None:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        reason = "another process is writing this file; give another name with -o"
        raise OSError(errno.EBUSY, reason, path) from None
