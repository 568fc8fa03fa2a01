"""Reading the records of calls (ftrace.hit.call_records)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ftrace.hit.call_records import ENTRY
from ftrace.hit.nodes import MOST_PLACES, OUTER_AT
from sandbox.abi import convention

_WORD = 8
_HEAD = struct.Struct("<HBBiQQII")
_ENTRY_WORDS, _RESULT_WORDS = struct.Struct("<6Q"), struct.Struct("<3Q")
_TARGET = struct.Struct("<Qq")
_VECTOR_BYTES = 128


class Values(NamedTuple):
    """The values in a record. `words`: of an entry di, si, dx, cx, r8, r9; of a return ax, dx, cx, errno.

    `targets`: address and bytes of what pointers lead to; None for what could not be read.
    """

    words: tuple[int, ...]
    vectors: bytes = b""
    stack: bytes = b""
    targets: tuple[tuple[int, bytes | None], ...] = ()

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


class Event(NamedTuple):
    """An entry or a return. `time`: of CLOCK_MONOTONIC, in nanoseconds; `value`: the return address, or the register ax.

    `place`: on the shadow stack; `is_newest`: at a return, no later call of the thread is in progress; `values`: None if none
    were recorded; `outer`: at an entry, the place of the call around it, 0 if there is none.
    """

    time: int
    thread: int
    ip: int
    place: int
    is_entry: bool
    is_newest: bool
    value: int
    values: Values | None = None
    outer: int = 0


def event_of(time: int, data: bytes) -> Event:
    """The event of a record. `data`: from its common fields on."""
    kind, _, _, thread, ip, value, place, layout = _HEAD.unpack_from(data)
    is_entry = kind == ENTRY
    values = _values(data, is_entry, value, layout) if layout else None
    own, outer = place >> 1 & MOST_PLACES, place >> OUTER_AT
    return Event(time, thread, ip, own, is_entry, not place & 1, value, values, outer)


def _values(data: bytes, is_entry: bool, ax: int, layout: int) -> Values:
    general = _ENTRY_WORDS if is_entry else _RESULT_WORDS
    words = general.unpack_from(data, _HEAD.size)
    at = _HEAD.size + general.size
    vectors = data[at : at + _VECTOR_BYTES * (layout >> 8 & 0xF)]
    at += len(vectors)
    stack = data[at : at + _WORD * (layout >> 12 & 0xFFF)]
    targets = tuple(_targets(data, at + len(stack), layout >> 24))
    return Values(words if is_entry else (ax, *words), vectors, stack, targets)


def _targets(data: bytes, at: int, count: int) -> Iterator[tuple[int, bytes | None]]:
    for _ in range(count):
        address, length = _TARGET.unpack_from(data, at)
        at += _TARGET.size
        yield address, data[at : at + length] if length >= 0 else None
        at += max(length, 0) + _WORD - 1 & -_WORD
