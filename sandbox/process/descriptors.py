"""Descriptors of ours in a process whose program may close every descriptor that it does not know.

The next file that the program opens then gets the number. What we write there would be in the program's file, and what we close
would be the program's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable

_HIGHEST = 1 << 16
_BELOW_LIMIT = 64


def file_of(descriptor: int) -> tuple[int, int]:
    """Which file a descriptor is open on: its device and inode; (0, 0) if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def close_own(descriptor: int, file: tuple[int, int]) -> None:
    """Close a descriptor, unless it is open on another file than `file` by now, or closed."""
    if file_of(descriptor) == file:
        os.close(descriptor)


class KeptDescriptor:
    """A descriptor with a high number, which the program's next files do not get. If it is closed, the file is opened again.

    `descriptor` is closed in favour of the other one. `again` opens the same file, and raises OSError if it cannot.
    """

    def __init__(self, descriptor: int, again: Callable[[], int]) -> None:
        self._file = file_of(descriptor)
        self._again = again
        self._number = moved_up(descriptor)

    @property
    def number(self) -> int:
        """The number that it has now. Raises OSError(EBADF) if it was closed and the file cannot be opened again."""
        if file_of(self._number) != self._file:
            self._number = self._opened()
        return self._number

    def _opened(self) -> int:
        closed = "the program has closed a descriptor of fprobe's"
        try:
            descriptor = self._again()
        except OSError as error:
            raise OSError(errno.EBADF, f"{closed}, and the file cannot be opened again: {error.strerror}") from None
        if file_of(descriptor) != self._file:
            os.close(descriptor)
            raise OSError(errno.EBADF, f"{closed}, and there is another file under the name")
        return moved_up(descriptor)

    def close(self) -> None:
        """Close it, unless the program has."""
        close_own(self._number, self._file)


def moved_up(descriptor: int) -> int:
    """The same file at a high number, which the program's next files do not get; at its own if none is free there."""
    limit = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST)
    try:
        moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(limit - _BELOW_LIMIT, descriptor))
    except OSError:
        return descriptor
    os.close(descriptor)
    return moved
