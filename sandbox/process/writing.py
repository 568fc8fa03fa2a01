"""Writing text and bytes to descriptors, which may take less than they are given."""

from __future__ import annotations

import os


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
