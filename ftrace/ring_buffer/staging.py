"""Sub-buffers on their way from a ring to a file, in memory that outlives their process.

A process that is killed between consuming and writing them leaves them here.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

from ftrace.hit.ring_buffer.layout import COMMIT_MASK, PAGE_SIZE

BATCH = 64
"""Sub-buffers that are consumed at once, at most."""
MAX_SIZE = 512 << 10
"""Bytes of the largest sub-buffer."""
SIZE = PAGE_SIZE + BATCH * MAX_SIZE
_HEAD = struct.Struct("<QQ")
"""The mark of the owner, 0 while the memory is changed; the size of a sub-buffer."""
COMMIT = struct.Struct("<II")
"""The commit word of a sub-buffer, whose upper half readers of rings ignore: there its owner is marked."""
COMMIT_AT = 8


class Staging:
    """`SIZE` bytes at `address`, zeros at first."""

    def __init__(self, address: int) -> None:
        self._address = address

    def emptied(self, mark: int, size: int, used: int = BATCH) -> Any:
        """Space for BATCH sub-buffers of `size` bytes, of the owner with that mark. Those that were there have been written.

        `used`: how many these are, at most; there may be one more, which could not be consumed.
        """
        self._set_head(0, 0)
        space = self._memory(PAGE_SIZE, BATCH * size)
        for number in range(min(used + 1, BATCH)):
            COMMIT.pack_into(space, number * size + COMMIT_AT, 0, 0)
        self._set_head(mark, size)
        return space

    def put(self, mark: int, page: bytes) -> None:
        """Keep one sub-buffer, of the owner with that mark, instead of those that were there."""
        space = self.emptied(mark, len(page))
        space[: len(page)] = page

    def pages(self) -> Iterator[bytes]:
        """The sub-buffers that are here, with the mark of their owner. Some may be written, and the last one not consumed."""
        mark, size = _HEAD.unpack(self._memory(0, _HEAD.size))
        for number in range(BATCH if mark else 0):
            page = bytearray(self._memory(PAGE_SIZE + number * size, size))
            commit, _ = COMMIT.unpack_from(page, COMMIT_AT)
            if not commit & COMMIT_MASK:
                return
            COMMIT.pack_into(page, COMMIT_AT, commit, mark)
            yield bytes(page)

    def _set_head(self, mark: int, size: int) -> None:
        _HEAD.pack_into(self._memory(0, _HEAD.size), 0, mark, size)

    def _memory(self, offset: int, size: int) -> Any:
        return (ctypes.c_char * size).from_address(self._address + offset)
