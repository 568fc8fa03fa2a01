"""Tables of functions with their counts and times, as text and as objects for JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fprobe.report.buckets import PERCENTILES, bars, powers
from fprobe.report.columns import fitting, room, shortened
from fprobe.report.counts import FunctionStat
from fprobe.report.durations import duration
from fprobe.report.order import FIELDS, value
from fprobe.report.style import Plain, Style
from sandbox.process.printable import quoted

_WIDTH = 10
_GIVING_WAY = ("min", "p90", "max", "p50", "average", "cpu", "p99", "self", "total", "hits")
"""Which columns go on a narrow terminal, one after the other."""
_OTHERS = "(other texts)"
"""The calls of the texts for which there was no place."""
_BY_ARGUMENT = re.compile(r"arg\((.*)\)")


class StatRow(NamedTuple):
    """A row of a table. `group`: text after the function's name, such as its caller; `origin`: the same for JSON."""

    name: str
    stat: FunctionStat
    group: str = ""
    origin: Mapping[str, str | int | None] = MappingProxyType({})


def argument_of(by: str) -> str | None:
    """The argument of `arg(NAME)` or `arg(NAME:TYPE)`, with its type; None if `by` is function, caller or thread."""
    found = _BY_ARGUMENT.fullmatch(by)
    return found[1] if found else None


def _argument_name(by: str) -> str | None:
    argument = argument_of(by)
    return argument and argument.partition(":")[0]


def group_heading(by: str) -> str:
    """The text after FUNCTION in the heading of a table. `by`: function, caller, thread, or arg(NAME)."""
    return "" if by == "function" else f" BY {_argument_name(by) or by.upper()}"


def group_text(by: str, origin: object) -> str:
    """The group of a row: its caller, its thread, or the value of an argument."""
    if name := _argument_name(by):
        shown = quoted(origin) if isinstance(origin, str) else _OTHERS if origin is None else origin
        return f" {name}={shown}"
    return {"caller": f" <- {origin}", "thread": f" in thread {origin}"}.get(by, "")


def origin_object(by: str, origin: str | int | None) -> dict[str, str | int | None]:
    """The same for JSON; empty if calls are grouped by function alone."""
    key = {"caller": "caller", "thread": "tid"}.get(by) or _argument_name(by)
    return {key: origin} if key else {}


def stat_lines(
    rows: Iterable[StatRow], by: str, style: Style | None = None, width: int | None = None, sort: str = ""
) -> Iterator[str]:
    """A line for each row, and one about calls that were not timed. Only what the rows have measured has a column.

    On a terminal of `width` columns, some give way and names are cut; that of the key `sort` stays.
    """
    rows, style = list(rows), style or Plain()
    if not rows:
        return
    measured = {column for row in rows for column in measured_columns(row.stat)}
    times = [column for column in FIELDS if column in measured]
    columns, names = [*times, "hits"], [f"{row.name}{row.group}" for row in rows]
    heading = f"FUNCTION{group_heading(by)}"
    if width is not None:
        narrower = ({name: 0} for name in _GIVING_WAY if name != sort)
        fit = fitting(dict.fromkeys(columns, _WIDTH), narrower, [*names, heading], width - 1)
        columns, names = list(fit), shortened(names, room(fit, width - 1))
        heading = heading[: room(fit, width - 1)]
    yield style.dim(f"{''.join(f'{head.upper():>{_WIDTH}} ' for head in columns)} {heading}")
    for (name, stat, group, _), shown in zip(rows, names, strict=True):
        numbers = "".join(f"{_number(stat, column):>{_WIDTH}} " for column in columns)
        yield f"{numbers} {style.bold(name)}{group}" if shown == f"{name}{group}" else f"{numbers} {style.bold(shown)}"
        if stat.missed:
            lost = f"{stat.missed:,} of these calls were not timed"
            yield style.bad(f"{'':{(_WIDTH + 1) * len(columns) + 1}}{lost}" if width is None else lost)


def _number(stat: FunctionStat, column: str) -> str:
    return f"{stat.hits:,}" if column == "hits" else duration(value(stat, column))


def measured_columns(stat: FunctionStat) -> list[str]:
    """The columns of times that a row has, in the order in which they are shown."""
    is_absent = {
        "self": not stat.has_self,
        "cpu": not stat.has_cpu,
        **dict.fromkeys((f"p{share}" for share in PERCENTILES), not stat.has_durations),
    }
    return [column for column in FIELDS if column != "hits" and not is_absent.get(column)]


def hist_lines(rows: Iterable[StatRow], width: int | None = None) -> Iterator[str]:
    """For each row its percentiles, and a bar for each power of two. `width`: columns of the terminal."""
    for name, stat, group, _ in rows:
        shares = ", ".join(f"p{share} {duration(stat.percentile(share))}" for share in PERCENTILES)
        yield f"{name}{group}: {stat.returned:,} calls, {duration(stat.total_ns)}: {shares}"
        yield from bars(stat.buckets, stat.rate, width)


def stat_object(stat: FunctionStat, *, with_histogram: bool) -> dict[str, Any]:
    """Counts and times for JSON: those that were measured, and a histogram if that is wanted."""
    made: dict[str, Any] = {"hits": stat.hits, "returns": stat.returned, "missed": stat.missed}
    made |= {f"{column}_ns": round(value(stat, column)) for column in measured_columns(stat)}
    if with_histogram:
        made["histogram"] = [
            {"low_ns": round(low / stat.rate), "high_ns": round(high / stat.rate), "count": count}
            for low, high, count in powers(stat.buckets)
        ]
    return made
