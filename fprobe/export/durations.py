"""Durations in the columns of trees and tables."""

from __future__ import annotations

HEADER = "#  DURATION       TID   FUNCTION"
"""The line above a tree of calls."""
_UNITS = ((1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s "))


def duration_text(nanoseconds: float) -> str:
    """A duration in 10 characters: `  1.234 us`; longer from 1000 s."""
    for scale, unit in _UNITS:
        if nanoseconds < scale * 1000 or unit == "s ":
            break
    return f"{nanoseconds / scale:7.3f} {unit}"
