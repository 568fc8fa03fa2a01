"""Where the files of loaded objects are, and by which paths they are known: files may be moved, replaced or deleted meanwhile."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from sandbox.memory.mappings import mappings

_MEMORY_FILE, _DELETED = "/memfd:", " (deleted)"
"""What is before the name of a memory file in /proc/self/maps, and what is after that of a file that is not there any more."""
_DESCRIPTOR = re.compile(r"/proc/(?:self|thread-self|\d+)(?:/task/\d+)?/fd/\d+")


def known_as(path: Path) -> Path:
    """The path by which a file is known: of a program that is not there any more, where it was; of a memory file, its name."""
    if _DESCRIPTOR.fullmatch(str(path)):
        with contextlib.suppress(OSError):
            target = str(path.readlink())
            return Path(f"{_MEMORY_FILE}/{target[len(_MEMORY_FILE) :]}") if target.startswith(_MEMORY_FILE) else path
    return Path(str(path).removesuffix(_DELETED))


def gone_files() -> frozenset[str]:
    """The files that are mapped and are not there any more, or are others by now."""
    return frozenset(path.removesuffix(_DELETED) for _, _, _, path in mappings() if path.endswith(_DELETED))


def absolute(name: str) -> Path:
    """The path as it is if the working directory has been deleted."""
    try:
        return Path(name).absolute()
    except FileNotFoundError:
        return Path(name)


def mapped_file(address: int) -> Path | None:
    """The file that is mapped at `address`: the program may have changed its directory since it opened a relative path."""
    named = (path for start, end, _, path in mappings() if start <= address < end)
    path = Path(next(named, "").replace("\\012", "\n"))
    return path if path.is_absolute() and path.exists() else None
