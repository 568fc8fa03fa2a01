"""Detecting code translators (valgrind, qemu-user) that keep executing old code after it has changed."""

from __future__ import annotations

import ctypes

from sandbox.memory import barriers, mappings

_NEAR = (1 << 32, 1 << 32)


def is_noticed() -> bool:
    """Change a function that has been called, and call it again."""
    text = mappings.allocate_text(_NEAR, mappings.PAGE, "fprobe-changed")
    try:
        function = ctypes.CFUNCTYPE(ctypes.c_int)(text.base)
        results = []
        for number in (1, 2):
            text.write(text.base, b"\xb8" + number.to_bytes(4, "little") + b"\xc3")  # mov $number, %eax; ret
            barriers.sync_cores()
            results.append(function())
        return results == [1, 2]
    finally:
        text.unmap()
