"""Reading the records of arguments and results that a thread has written (ftrace.hit.call_values)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from fprobe.run import session
from sandbox.abi import convention

_WORD = 8
_HEAD = struct.Struct("<9Q")
_TARGET = struct.Struct("<Qq")
_VECTOR_BYTES, _MOST_WORDS = 128, 1 << 14
_IS_THERE, _NUMBER = 1 << 31, (1 << 31) - 1
Read = Callable[[int, int], bytes]
"""Reads bytes of a ring of values, by offset and size."""


class Values(NamedTuple):
    """A record. `words`: of an entry di, si, dx, cx, r8, r9, sp; of a return ax, dx, cx, errno.

    `targets`: address and bytes of what pointers lead to; None for what could not be read.
    """

    words: tuple[int, ...]
    vectors: bytes
    stack: bytes
    targets: tuple[tuple[int, bytes | None], ...]

    def image(self, *, is_entry: bool) -> bytes:
        """The image of the call (sandbox.abi.convention); what was not recorded is zero."""
        registers = bytearray(convention.REGISTERS)
        places = convention.ARGUMENTS if is_entry else convention.RESULTS
        for at, word in zip(places, self.words, strict=False):
            struct.pack_into("<Q", registers, at, word)
        return bytes(registers) + (self.vectors or bytes(_VECTOR_BYTES)) + self.stack

    @property
    def errno(self) -> int:
        """The thread's errno at a return."""
        return self.words[3]


def read_values(read: Read, number: int, time: int) -> Values | None:
    """The values of an event; None if they were overwritten. `number`: where they are; `time`: of the event."""
    at = (number & _NUMBER) % session.VALUES * _WORD
    head = read(at, _HEAD.size)
    if len(head) < _HEAD.size:
        return None
    stamp, sizes, *words = _HEAD.unpack(head)
    length = sizes & 0xFFFFFFFF
    if stamp != time or not _HEAD.size // _WORD <= length <= _MOST_WORDS:
        return None
    data = read(at, length * _WORD)
    if len(data) < length * _WORD:
        return None
    has_vectors, stack, count = sizes >> 32 & 0xFF, sizes >> 40 & 0xFF, sizes >> 48
    at = _HEAD.size
    vectors = data[at : at + _VECTOR_BYTES * has_vectors]
    at += len(vectors)
    above = data[at : at + stack * _WORD]
    at += len(above)
    return Values(tuple(words), vectors, above, _targets(data, at, count))


def _targets(data: bytes, at: int, count: int) -> tuple[tuple[int, bytes | None], ...]:
    found = []
    for _ in range(count):
        address, length = _TARGET.unpack_from(data, at)
        at += _TARGET.size
        found.append((address, data[at : at + length] if length >= 0 else None))
        at += max(length, 0) + _WORD - 1 & -_WORD
    return tuple(found)
