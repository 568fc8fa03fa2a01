"""Per-thread memory of a tracer."""

from __future__ import annotations

import weakref

from sandbox.memory import mappings
from sandbox.threads import tasks


class TaskAreas:
    """`size` bytes for each thread, contiguous from `address` on, initially zero. Freed with the object."""

    def __init__(self, size: int) -> None:
        length = size * tasks.CAPACITY
        self.address = mappings.reserve(length)
        weakref.finalize(self, mappings.release, self.address, length).atexit = False
