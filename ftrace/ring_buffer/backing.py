"""The memory of the pages, from which another process can read the records after this process has ended.

It is a file that this process creates, or memory of the process that has started this one.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Protocol

from sandbox.memory.pages import is_denied, set_size

PATH = "FPROBE_BUFFER"
"""Environment variable: the file to create for the pages, which must not exist yet."""
POOL = "FPROBE_BUFFER_POOL_KB"
"""Environment variable: the size of the pool of pages, in KiB."""
DEFAULT_POOL_KB = 64 << 10
MAX_POOL_KB = 16 << 20


def pool_size() -> int:
    """Bytes of the pool of pages. Raises ValueError for a size in the environment that is out of range."""
    text = os.environ.get(POOL, str(DEFAULT_POOL_KB))
    if not (text.isascii() and text.isdigit() and 512 <= int(text) <= MAX_POOL_KB):
        raise ValueError(f"{POOL} is {text!r}; it must be a number of KiB between 512 and {MAX_POOL_KB}")
    return int(text) << 10


def create(size: int, path: str = "") -> int:
    """Create a file of `size` zero bytes at `path`, or without a name in memory, and return its descriptor.

    Raises OSError: FileExistsError for a path that exists, ENOSPC if a file system cannot hold the whole file.
    """
    descriptor = _at(path, size) if path else _unnamed(size)
    os.set_inheritable(descriptor, False)
    return descriptor


def _at(path: str, size: int) -> int:
    """Create a named file. All blocks are allocated now, since on a full disk a later write to the mapping would be a SIGBUS."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        message = f"{PATH} names {path!r}, which exists; name a file that does not, or remove it"
        raise FileExistsError(errno.EEXIST, message) from None
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        os.close(descriptor)
        os.unlink(path)  # noqa: PTH108
        raise _unusable(path, error, f" with {size >> 10} KiB") from None
    return descriptor


def _unusable(path: str, error: OSError, what: str = "") -> OSError:
    number = error.errno or errno.EIO
    return OSError(number, f"{PATH} names {path!r}, which cannot be created{what}: {os.strerror(number)}")


def _unnamed(size: int) -> int:
    """A memfd, sealed against changes of its size; where memfds are denied, an unlinked file."""
    if not is_denied("memfd"):
        try:
            descriptor = os.memfd_create("fprobe-buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:
            pass
        else:
            _set_size(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return descriptor
    import tempfile

    directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    descriptor, path = tempfile.mkstemp(dir=directory)
    os.unlink(path)  # noqa: PTH108
    _set_size(descriptor, size)
    return descriptor


def _set_size(descriptor: int, size: int) -> None:
    try:
        set_size(descriptor, size, "the ring buffer's pool (FPROBE_BUFFER_POOL_KB)")
    except OSError:
        os.close(descriptor)
        raise


class Shared(Protocol):
    """Memory of the process that has started this one, and reads the records after its end."""

    def map_pages(self, size: int) -> int:
        """Map `size` zero bytes for a memory file, for this process alone. Returns the address. Raises OSError."""

    def map_comms(self, size: int) -> int:
        """Map `size` bytes for the names of threads; processes may share them. Returns the address. Raises OSError."""


_shared: list[Shared] = []


def share(memory: Shared) -> None:
    """Keep the pages in `memory`. Must be called before anything is recorded."""
    _shared[:] = [memory]


def shared() -> Shared | None:
    """The memory for the pages; None if they are in a file of this process."""
    return _shared[0] if _shared else None
