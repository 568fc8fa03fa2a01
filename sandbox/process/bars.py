"""Bars of text, whose lengths compare counts."""

from __future__ import annotations

LONGEST = 40
"""The length of the longest bar in characters."""


_SHORTEST = 5
"""What a terminal must have space for: else lines have no bars."""


def bar(count: int, most: int, longest: int = LONGEST) -> str:
    """A bar for a count, the longest one for `most`. Only that of 0 is empty."""
    return "#" * -(-count * longest // (most or 1))


def barred(left: str, count: int, most: int, width: int | None, end: str = "|") -> str:
    """A line with a bar after `left`, and `end` after the longest; on a terminal of `width` columns it has what is left of these.

    If that is nothing, `left` is closed up.
    """
    space = LONGEST if width is None else min(LONGEST, width - 1 - len(f"{left} |{end}"))
    if space < _SHORTEST:
        return "  ".join(filter(None, map(str.strip, left.split("  "))))
    return f"{left} |{bar(count, most, space):<{space if end else 0}}{end}"
