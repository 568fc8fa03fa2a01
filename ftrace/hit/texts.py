"""Texts by which calls are told apart: a table that hits fill without locks, and that another process may read. Native.

A text is known by a hash of 64 bits, the same in every thread and process. Two texts of one hash would be taken for one.
"""

from __future__ import annotations

from ftrace.hit.hashing import GOLDEN, first_place
from sandbox.native import *

BITS = 13
"""Of a place's number. A thread has rows for fewer texts than there are places."""
PROBES = 64
LONGEST = 255
"""Bytes of a text that are kept, and by which it is told apart."""
_BASIS, _PRIME = 0xCBF2_9CE4_8422_2325, 0x100_0000_01B3
"""Of the hash FNV-1a."""


@struct
class KeptText(Structure):
    """A place. `used`: 1 more than the bytes of the text, once all of them are there."""

    number: u64  # 0: the place is free
    used: u64
    text: array[u8, 256]


TEXTS_SIZE = KeptText.size << BITS
"""Bytes of the table. It begins as zeros."""


@native(inline=True)
def length_of(text: ptr[u8], size: u64) -> u64:
    """The number of bytes before the first 0 of `size` bytes, but at most LONGEST."""
    for length in range(min(size, LONGEST)):
        if text[length] == 0:
            return length
    return min(size, LONGEST)


@native(inline=True)
def hash_of_text(text: ptr[u8], length: u64) -> u64:
    """FNV-1a, and its upper bits mixed into the lower ones, by which rows are found; never 0."""
    hash: u64 = _BASIS
    for index in range(min(length, LONGEST)):
        hash = (hash ^ cast(u64, text[index])) * _PRIME
    hash = (hash ^ (hash >> 32)) * GOLDEN
    hash ^= hash >> 29
    return hash if hash != 0 else 1


@native(noinline=True)
def text_number(texts: u64, record: ptr[u8], place: u64) -> u64:
    """The number of a record's text, which is kept if it is new; 0 if there is no place for it.

    `place`: its offset in the record, and in the upper half of the lower 32 bits its length (__data_loc).
    """
    text = addressof(record[place & 0xFFFF])
    length = length_of(text, place >> 16)
    number = hash_of_text(text, length)
    index = first_place(number, 64 - BITS)
    for _ in range(PROBES):
        kept = cast(ptr[KeptText], texts + index * sizeof(KeptText))
        if unlikely(load(addressof(kept.number)) == 0) and atomic_cas(addressof(kept.number), 0, number, "relaxed"):
            for at in range(min(length, LONGEST)):
                kept.text[at] = text[at]
            store(addressof(kept.used), length + 1, "release")
        if likely(load(addressof(kept.number)) == number):
            return number
        index = (index + 1) & ((1 << BITS) - 1)
    return 0
