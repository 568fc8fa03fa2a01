"""Bars of text, whose lengths compare counts."""

from __future__ import annotations

LONGEST = 40
"""The length of the longest bar in characters."""


def bar(count: int, most: int) -> str:
    """A bar for a count, the longest one for `most`. Only that of 0 is empty."""
    return "#" * -(-count * LONGEST // (most or 1))
