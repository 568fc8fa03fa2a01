"""Writing to descriptors, which may take less than they are given."""

from __future__ import annotations

import os


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, a sequence of bytes. Raises OSError; what was written before the error is not taken back."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
