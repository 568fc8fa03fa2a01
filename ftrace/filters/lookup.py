"""Looking up locations by address and by name: ftrace_location() and related functions."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from ftrace.tracer import tracer


def ftrace_location(address: int) -> int:
    """The ip of the location that `address` lies in, or whose function begins at `address`; 0 if there is none."""
    location = tracer().table.location(address)
    return location.ip if location else 0


def ftrace_location_range(start: int, end: int) -> int:
    """The ip of a location whose 5 bytes touch start..end, both inclusive; 0 if there is none."""
    location = tracer().table.location_range(start, end)
    return location.ip if location else 0


def ftrace_text_reserved(start: int, end: int) -> bool:
    """Whether start..end, both inclusive, touch a location, which only ftrace may write."""
    return tracer().table.location_range(start, end) is not None


def ftrace_lookup_symbols(names: Sequence[str]) -> list[int]:
    """The address of the first function of each name that has a location.

    Raises OSError(ESRCH), with the name, for the first that has none or is given twice.
    """
    table, found = tracer().table, dict[str, int]()
    for name in names:
        location = table.named(name)
        if location is None or name in found:
            reason = "is given twice" if location else "has no location"
            raise OSError(errno.ESRCH, f"the name {name!r} {reason}")
        found[name] = location.function.address
    return list(found.values())
