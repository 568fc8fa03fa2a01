"""A cache of compiled objects on disk.

Its entries are executed. So the directory must be writable by this user only, entries appear whole or not at all, and each has a
hash of its contents; an entry that does not match is treated as absent.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from sandbox.process.digests import sha256

DIRECTORY = "FPROBE_CACHE_DIR"
"""Environment variable: where the cache is, instead of $XDG_CACHE_HOME/fprobe or ~/.cache/fprobe."""
OPT_OUT = "FPROBE_NO_CACHE"
"""Set this environment variable to compile everything afresh."""

_MAGIC = b"fprobe-cache-1\n"
_SEAL_SIZE = sha256().digest_size
_HEAD = len(_MAGIC) + _SEAL_SIZE
shipped: dict[str, bytes] = {}
"""Entries that another process has sent to this one."""
used: list[str] | None = None
"""The keys of entries that were looked for, while that is wanted."""
_left: dict[tuple[Path, int], int] = {}
"""(directory, limit) -> how many more bytes this process may add before it lists the directory again."""


def key(*parts: str | bytes) -> str:
    """The key of an object made from `parts`, in their order: 64 hexadecimal digits."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def default_directory() -> Path:
    """The directory of this user's cache."""
    chosen = os.environ.get(DIRECTORY)
    if chosen:
        return Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if Path(root).is_absolute() else Path.home() / ".cache") / "fprobe"


class Cache:
    """Entries of bytes by key, in `directory`; without a directory, all are absent.

    Beyond `limit` bytes in all, the least recently used entries are deleted.
    """

    def __init__(self, directory: Path | None, limit: int = 1 << 28) -> None:
        self.directory = directory
        self.limit = limit

    def get(self, key: str) -> bytes | None:
        """The contents stored under `key`; None if there are none, or if they are damaged."""
        if used is not None:
            used.append(key)
        if key in shipped:
            return shipped[key]
        if self.directory is None or not _is_ours(self.directory):
            return None
        try:
            found = _verified(key, self._path(key).read_bytes())
        except OSError:
            return None
        with contextlib.suppress(OSError):
            self._path(key).touch()
        return found

    def put(self, key: str, data: bytes) -> None:
        """Store `data` under `key`. Does nothing if the directory is not writable, or is writable by others."""
        if self.directory is None:
            return
        with contextlib.suppress(OSError):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _is_ours(self.directory):
                _write_whole(self._path(key), _MAGIC + _seal(key, data) + data)
                self._limit_size(len(data))

    def _limit_size(self, added: int) -> None:
        """Delete the oldest objects if `added` bytes more may be too many: the directory is listed when that is not known."""
        assert self.directory is not None
        which = self.directory, self.limit
        left = _left.get(which, 0) - added - _HEAD
        _left[which] = left if left > 0 else _delete_oldest(self.directory, self.limit)

    def _path(self, key: str) -> Path:
        assert self.directory is not None
        return self.directory / f"{key}.bin"


def _is_ours(directory: Path) -> bool:
    """Whether it is a directory that no other user can write to."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _seal(key: str, data: bytes) -> bytes:
    return sha256(key.encode() + data).digest()


def _verified(key: str, stored: bytes) -> bytes | None:
    start = len(_MAGIC) + _SEAL_SIZE
    data = stored[start:]
    whole = stored.startswith(_MAGIC) and stored[len(_MAGIC) : start] == _seal(key, data)
    return data if whole else None


def _write_whole(path: Path, data: bytes) -> None:
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _delete_oldest(directory: Path, limit: int) -> int:
    """How many more bytes may be added before the size is determined again: other processes add some, too."""
    with os.scandir(directory) as entries:
        found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries]
    for _, size, path in sorted(found, reverse=True):
        limit -= size
        if limit < 0:
            Path(path).unlink(missing_ok=True)
    return max(limit, 0) // 8


def default_cache() -> Cache:
    """The cache of this user, or one that holds nothing if that was opted out of."""
    return Cache(None if os.environ.get(OPT_OUT) else default_directory())
