"""Memory for accounts of calls (ftrace.hit.account): a table of cells for each thread, and its contents."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator

from ftrace.core.runtime import runtime
from ftrace.hit.account import BY_NOTHING, WALL
from sandbox.memory import mappings
from sandbox.threads import tasks

_WORD = 8
_MOST_BY_ORIGIN = 12
"""Bits of a cell's number where calls are distinguished: how many origins there are is not known."""


class TaskAreas:
    """`size` bytes for each thread, contiguous from `address` on, initially zero. Freed with the object."""

    def __init__(self, size: int) -> None:
        length = size * tasks.CAPACITY
        self.address = mappings.reserve(length)
        weakref.finalize(self, mappings.release, self.address, length).atexit = False


class CallCells:
    """Cells of `size` bytes, twice as many as functions, for each thread. Freed with the object. Raises OSError(ENOMEM)."""

    def __init__(self, functions: int, size: int, by: int = BY_NOTHING, measures: int = WALL) -> None:
        bits = max(4, (2 * functions).bit_length()) if by == BY_NOTHING else _MOST_BY_ORIGIN
        self.stride = -(-(size << bits) // mappings.PAGE) * mappings.PAGE
        self._areas = TaskAreas(self.stride)
        self._cells, self._words = 1 << bits, size // _WORD
        self.account = {
            "rows": self._areas.address,
            "stride": self.stride,
            "shift": 64 - bits,
            "by": by,
            "measures": measures,
        }
        """The fields of the native Account."""

    def of_slot(self, slot: int) -> Iterator[list[int]]:
        """The words of each used cell of one slot's thread."""
        step = self._words
        words = (ctypes.c_uint64 * (self._cells * step)).from_address(self._areas.address + slot * self.stride)
        return (words[at : at + step] for at in range(step, len(words), step) if words[at])

    def __iter__(self) -> Iterator[list[int]]:
        """The words of all used cells."""
        return (cell for slot in range(len(runtime().tasks())) for cell in self.of_slot(slot))
