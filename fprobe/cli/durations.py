"""Histograms and percentiles of durations: `fprobe stat --hist`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fprobe.calls.text import duration_text

if TYPE_CHECKING:
    from fprobe.actions import FunctionStat, Stat
    from fprobe.cli.match import Match

_SHARES = (50, 90, 99)
_WIDTH = 40


def by_name(match: Match, stat: Stat) -> dict[str, FunctionStat]:
    """The statistics of functions with timed calls, by name."""
    found = stat.functions()
    known = ((site.symbol.name, found.get(site.address)) for site in match.sites)
    return {name: each for name, each in known if each is not None and each.durations}


def lines(found: Mapping[str, FunctionStat]) -> Iterator[str]:
    """For each function: its percentiles, and a bar for each power of two."""
    for name, stat in found.items():
        shares = ", ".join(f"p{share} {duration_text(stat.percentile(share)).strip()}" for share in _SHARES)
        yield f"{name}: {shares}"
        largest = max(stat.durations.values())
        for start, calls in sorted(stat.durations.items()):
            yield f"  {duration_text(start)}  {calls:10,} |{'#' * max(1, round(_WIDTH * calls / largest))}"


def objects(found: Mapping[str, FunctionStat]) -> dict[str, dict[str, Any]]:
    """The same for JSON, by name."""
    return {name: _object(stat) for name, stat in found.items()}


def _object(stat: FunctionStat) -> dict[str, Any]:
    shares = {f"p{share}_ns": round(stat.percentile(share)) for share in _SHARES}
    return shares | {
        "durations": [{"from_ns": round(start), "calls": n} for start, n in sorted(stat.durations.items())]
    }
