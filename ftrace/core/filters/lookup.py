"""The functions that can be traced: ftrace_location() and related functions, and the text files that list functions."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence

from ftrace.core.sites.locations import Location, LocationSet
from ftrace.core.tracer import tracer


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


def available_filter_functions(addresses: bool = False) -> str:
    """Every function that has a stub, in table order; with `addresses` as in available_filter_functions_addrs.

    Empty, like the other listings, once ftrace is dead.
    """
    locations = _ordered(tracer().table.everything())
    return "".join(f"{location.ip:x} {location}\n" if addresses else f"{location}\n" for location in locations)


def enabled_functions() -> str:
    """The functions that are patched, with how many ops want them and what their stub leads to."""
    tracing = tracer()
    if not tracing.switched_on:
        return ""
    with tracing.table.lock:
        wanted = LocationSet()
        for ops in tracing.enabled:
            wanted |= ops.selection()
        return _lines(wanted)


def touched_functions() -> str:
    """The same for every function that has ever been patched, with the count of now, which may be 0."""
    return _lines(tracer().touched)


_A_PAGE = 256
"""Records on a page of the kernel's table."""


def dyn_ftrace_total_info() -> str:
    """How many functions have a stub, and in how many modules: tracing_read_dyn_info() of kernel/trace/trace.c."""
    counts = [mask.bit_count() for mask in tracer().table.everything().values()]
    pages = sum(-(-count // _A_PAGE) for count in counts)
    return f"{sum(counts)} pages:{pages} groups: {len(counts)}\n"


def _lines(selection: LocationSet) -> str:
    with tracer().table.lock:  # the list that a site leads to is freed by who changes it
        return "".join(f"{record.line()}\n" for record in tracer().records(_ordered(selection)))


def _ordered(selection: LocationSet) -> Iterator[Location]:
    """The locations of a selection, in table order; none if ftrace is dead."""
    tracing = tracer()
    if not tracing.dead:
        there = tracing.table.everything()
        yield from LocationSet({block: selection[block] for block in there if block in selection}).each()
