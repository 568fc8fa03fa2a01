"""Durations as text, and values as characters of different heights."""

from __future__ import annotations

from collections.abc import Iterable


def duration(nanoseconds: float, digits: int = 3) -> str:
    """A duration with its unit and `digits` digits after the point; below 1 us, whole nanoseconds."""
    if nanoseconds < 999.5:
        return f"{nanoseconds:.0f} ns"
    for unit in ("us", "ms"):
        nanoseconds /= 1000
        if round(nanoseconds, digits) < 1000:
            return f"{nanoseconds:.{digits}f} {unit}"
    return f"{nanoseconds / 1000:.{digits}f} s"


def levels(values: Iterable[float]) -> str:
    """One bar character for each value, its height relative to the largest; a space for 0."""
    known = list(values)
    most = max(known, default=0)
    return "".join(_LEVELS[round(value / most * (len(_LEVELS) - 1))] if value else " " for value in known)


_LEVELS = "▁▂▃▄▅▆▇█"
