"""Names of shared libraries and extension modules, from the names of their files."""

from __future__ import annotations

import re

_TAG = re.compile(r"\.(?:cpython-[\w-]+|abi3t?|pypy\d[\w-]*|graalpy[\w-]*)$")
"""What a Python implementation puts before `.so` in the file of an extension module: importlib.machinery.EXTENSION_SUFFIXES."""


def short_name(file: str) -> str:
    """`libz` of libz.so.1.2.13, `zlib` of zlib.cpython-311-x86_64-linux-gnu.so."""
    return _TAG.sub("", file.partition(".so")[0])
