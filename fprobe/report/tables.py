"""Tables of functions with their counts and times, as text and as objects for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from fprobe.report.buckets import PERCENTILES, bars, powers
from fprobe.report.counts import FunctionStat
from fprobe.report.durations import duration
from fprobe.report.style import Plain, Style

_WIDTH = 10


class StatRow(NamedTuple):
    """A row of a table. `group`: text after the function's name, such as its caller."""

    name: str
    stat: FunctionStat
    group: str = ""


def group_heading(by: str) -> str:
    """The text after FUNCTION in the heading of a table. `by`: function, caller or thread."""
    return "" if by == "function" else f" BY {by.upper()}"


def group_text(by: str, origin: object) -> str:
    """The group of a row: its caller or thread."""
    return {"caller": f" <- {origin}", "thread": f" in thread {origin}"}.get(by, "")


def stat_lines(rows: Iterable[StatRow], by: str, style: Style | None = None) -> Iterator[str]:
    """A line for each row, and one about calls that were not timed. Percentiles are columns if the rows have them."""
    rows, style = list(rows), style or Plain()
    times: dict[str, str | int] = {
        "TOTAL": "total_ns",
        "AVERAGE": "average_ns",
        "MIN": "min_ns",
        "P50": 50,
        "P99": 99,
        "MAX": "max_ns",
    }
    if not any(row.stat.has_durations for row in rows):
        del times["P50"], times["P99"]
    heads = " ".join(f"{head:>{_WIDTH}}" for head in (*times, "HITS"))
    yield style.dim(f"{heads}  FUNCTION{group_heading(by)}")
    for name, stat, group in rows:
        columns = " ".join(f"{duration(_time(stat, which)):>{_WIDTH}}" for which in times.values())
        yield f"{columns} {stat.hits:{_WIDTH},}  {style.bold(name)}{group}"
        if stat.missed:
            yield style.bad(f"{'':{len(heads) + 2}}{stat.missed:,} of these calls were not timed")


def _time(stat: FunctionStat, which: str | int) -> float:
    return stat.percentile(which) if isinstance(which, int) else float(getattr(stat, which))


def hist_lines(rows: Iterable[StatRow]) -> Iterator[str]:
    """For each row its percentiles, and a bar for each power of two."""
    for name, stat, group in rows:
        shares = ", ".join(f"p{share} {duration(stat.percentile(share))}" for share in PERCENTILES)
        yield f"{name}{group}: {stat.returned:,} calls, {duration(stat.total_ns)}: {shares}"
        yield from bars(stat.buckets, stat.rate)


def stat_object(stat: FunctionStat, *, with_histogram: bool) -> dict[str, Any]:
    """Counts and times for JSON; with percentiles and a histogram if durations were counted."""
    made: dict[str, Any] = {"hits": stat.hits, "returns": stat.returned, "missed": stat.missed}
    made |= {f"{name}_ns": round(getattr(stat, f"{name}_ns")) for name in ("total", "average", "min", "max")}
    if stat.has_durations:
        made |= {f"p{share}_ns": round(stat.percentile(share)) for share in PERCENTILES}
    if with_histogram:
        made["histogram"] = [
            {"low_ns": round(low / stat.rate), "high_ns": round(high / stat.rate), "count": count}
            for low, high, count in powers(stat.buckets)
        ]
    return made
