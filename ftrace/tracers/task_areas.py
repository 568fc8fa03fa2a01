"""Memory of a tracer that each thread has its own part of."""

from __future__ import annotations

import weakref

from sandbox.memory import mappings
from sandbox.threads import tasks


class TaskAreas:
    """`size` bytes for each thread, zero at first, one after the other from `address` on. Given back with the object."""

    def __init__(self, size: int) -> None:
        length = size * tasks.CAPACITY
        self.address = mappings.reserve(length)
        weakref.finalize(self, mappings.release, self.address, length).atexit = False
