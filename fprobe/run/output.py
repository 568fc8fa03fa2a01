"""Writing the reports of a run to descriptors."""

from __future__ import annotations

import os


def as_bytes(text: str) -> bytes:
    """Text as UTF-8. Names that are not UTF-8 become the bytes that they have in the system."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that Python has not made
        return text.encode("utf-8", "replace")


def write(descriptor: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    while data:
        data = data[os.write(descriptor, data) :]
