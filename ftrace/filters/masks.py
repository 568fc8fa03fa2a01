"""Sets of positions as integers: bit i is position i."""

from __future__ import annotations

from collections.abc import Iterable

_DIGITS = bytes.maketrans(b"\x00\x01", b"01")


def mask_of(flags: Iterable[int]) -> int:
    """The positions at which `flags` is true (1, and not 0). Takes time in proportion to their number, unlike adding up bits."""
    return int(bytes(flags).translate(_DIGITS)[::-1] or b"0", 2)
