"""Names of shared libraries and extension modules, from the names of their files."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from functools import cache, lru_cache

_TAG = re.compile(r"\.(?:cpython-[\w-]+|abi3t?|pypy\d[\w-]*|graalpy[\w-]*)$")
"""What a Python implementation puts before `.so` in the file of an extension module: importlib.machinery.EXTENSION_SUFFIXES."""


_VERSION = re.compile(r"-(?:\d[^-]*|[0-9a-f]{8}(?:\.[^-]*)?)$")
"""What `libcrypt-2.31.so` has after its name; wheels have a part of a checksum there, as in `libgomp-a34b3233.so.1.0.0`."""


@cache
def names_of(file: str) -> frozenset[str]:
    """What a library may be called before the colon of a pattern: `libz` of libz.so.1, `libcrypt` of libcrypt-2.31.so."""
    stem, tagged = short_name(file), file.partition(".so")[0]
    names = {file, tagged, stem, _VERSION.sub("", stem), *([f"{tagged}.so"] if ".so" in file else [])}
    return frozenset(names | {in_events(name) for name in names})


def split_folder(owner: str) -> tuple[str, str]:
    """The folder and the name of a library that is written as a path or the end of one: `numpy/_core`; ("", name) without one."""
    folder, _, name = owner.removeprefix("./").rpartition("/")
    return folder or owner[: owner.startswith("/")], name


def is_in_folder(path: str, folder: str) -> bool:
    """Whether the file is in `folder`: a whole path, or the end of one; either may be a glob."""
    parent = path.rpartition("/")[0] or "/"
    if folder.startswith("/"):
        return fnmatchcase(parent, folder) or os.path.realpath(parent) == os.path.realpath(folder)
    end = "/".join(parent.split("/")[-1 - folder.count("/") :])
    return end == folder or fnmatchcase(end, folder)


@lru_cache(maxsize=1024)
def told_apart(path: str, paths: tuple[str, ...]) -> str:
    """`libz` of /lib/libz.so.1; more of its path if others of `paths` are called so, too: `libz.so.1`, `lib/libz`."""
    folder, file = split_folder(path)
    name = short_name(file)
    others = [other for other in paths if other != path and short_name(other.rpartition("/")[2]) == name]
    if all(other.rpartition("/")[2] != file for other in others):
        return file if others else name
    parts = folder.split("/")
    ends = ("/".join(parts[-depth:]) for depth in range(1, len(parts)))
    alone = (end for end in ends if not any(is_in_folder(other, end) for other in others))
    return f"{next(alone, folder)}/{name}"


def in_events(file: str) -> str:
    """The name of a file as lines of probe events can have it: `libstdc__.so.6`. Their grammar takes `+` and `-` for offsets."""
    return re.sub(r"[^\w.]", "_", file)


def short_name(file: str) -> str:
    """`libz` of libz.so.1.2.13, `zlib` of zlib.cpython-311-x86_64-linux-gnu.so."""
    return _TAG.sub("", file.partition(".so")[0])
