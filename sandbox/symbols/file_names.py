"""Names of shared libraries and extension modules, from the names of their files."""

from __future__ import annotations

import re

_TAG = re.compile(r"\.(?:cpython-[\w-]+|abi3t?|pypy\d[\w-]*|graalpy[\w-]*)$")
"""What a Python implementation puts before `.so` in the file of an extension module: importlib.machinery.EXTENSION_SUFFIXES."""


def names_of(file: str) -> frozenset[str]:
    """What a library may be called before the colon of a pattern: `libz` of libz.so.1, `libcrypt` of libcrypt-2.31.so."""
    stem = short_name(file)
    head, dash, version = stem.rpartition("-")
    names = {file, file.partition(".so")[0], stem, head if dash and version[:1].isdigit() else file}
    return frozenset(names | {in_events(name) for name in names})


def in_events(file: str) -> str:
    """The name of a file as lines of probe events can have it: `libstdc__.so.6`. Their grammar takes `+` and `-` for offsets."""
    return re.sub(r"[^\w.]", "_", file)


def short_name(file: str) -> str:
    """`libz` of libz.so.1.2.13, `zlib` of zlib.cpython-311-x86_64-linux-gnu.so."""
    return _TAG.sub("", file.partition(".so")[0])
