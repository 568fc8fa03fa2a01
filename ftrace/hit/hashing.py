"""Multiplicative hashing: the first index of a key in an open-addressing table whose size is a power of two."""

from __future__ import annotations

from sandbox.native import *

GOLDEN = 0x9E37_79B9_7F4A_7C15
"""2**64 divided by the golden ratio."""


@native(inline=True)
def first_place(key: u64, shift: u64) -> u64:
    """An index; `shift` is 64 less the number of its bits."""
    return (key * GOLDEN) >> shift


def index_of(key: int, bits: int) -> int:
    """`first_place` for Python, which fills tables that native code reads: the first index in a table of 1 << `bits`."""
    return (key * GOLDEN & (1 << 64) - 1) >> 64 - bits
