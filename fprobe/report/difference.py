"""What has changed between two sets of runs: by function or by stack, absolute and relative, with a rank test."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import NormalDist, median
from typing import Any, NamedTuple

from fprobe.report.columns import fitting, room, shortened
from fprobe.report.durations import duration
from fprobe.report.style import Style

VALUES = ("self", "total", "average", "hits")
"""What can be compared. Stacks have `self` only: the time of their innermost functions."""
_GIVING_WAY = ("A", "P", "B", "CHANGE")
"""The columns that a narrow terminal does not show, in this order."""
_WIDTH = 11


class Measured(NamedTuple):
    """A function in one run. Times are in nanoseconds, of calls that returned; `self`: None if it was not measured."""

    hits: int
    returns: int
    total: float
    self: float | None

    def value(self, key: str) -> float | None:
        """One of `VALUES`; None if it was not measured."""
        if key == "average":
            return self.total / self.returns if self.returns else 0.0
        return {"self": self.self, "total": self.total, "hits": self.hits}[key]


@dataclass
class Run:
    """A report or a recording. `stacks`: nanoseconds by frames, outermost first."""

    source: str
    functions: Mapping[str, Measured]
    stacks: Mapping[tuple[str, ...], float]


@dataclass
class Change:
    """A row: medians over the runs of each side; 0 where it does not exist. `p`: see `mann_whitney`; None with single runs."""

    name: str
    before: float
    after: float
    only_in: str = ""
    p: float | None = None

    @property
    def change(self) -> float:
        """The difference, in nanoseconds or hits."""
        return self.after - self.before

    @property
    def relative(self) -> float:
        """The difference as a share of the value before; infinite if that is 0."""
        if self.before:
            return self.change / self.before
        return math.inf if self.after else 0.0


def changes(before: Sequence[Mapping[str, float | None]], after: Sequence[Mapping[str, float | None]]) -> list[Change]:
    """The rows of two sets of runs, the largest change first."""
    names = dict.fromkeys(name for run in (*before, *after) for name in run)
    made = [_change(name, before, after) for name in names]
    return sorted(made, key=lambda row: (-abs(row.change), row.name))


def _change(
    name: str, before: Sequence[Mapping[str, float | None]], after: Sequence[Mapping[str, float | None]]
) -> Change:
    one, other = ([run.get(name) or 0.0 for run in side] for side in (before, after))
    is_before, is_after = (any(name in run for run in side) for side in (before, after))
    only_in = "" if is_before and is_after else "A" if is_before else "B"
    p = mann_whitney(one, other) if len(one) > 1 and len(other) > 1 else None
    return Change(name, median(one), median(other), only_in, p)


def mann_whitney(one: Sequence[float], other: Sequence[float]) -> float:
    """The probability, if both samples were of one distribution, of a rank sum at least as far from its mean (two-sided).

    Exact without ties for up to 20 values on each side; else by the normal distribution, corrected for ties and continuity.
    """
    m, n = len(one), len(other)
    u = sum((a > b) + (a == b) / 2 for a in one for b in other)
    low = min(u, m * n - u)
    ties = [len(list(run)) for _, run in groupby(sorted((*one, *other)))]
    if max(ties) == 1 and max(m, n) <= 20:
        return min(1.0, 2 * sum(_arrangements(m, n, rank) for rank in range(int(low) + 1)) / math.comb(m + n, m))
    spread = m * n / 12 * ((m + n + 1) - sum(t**3 - t for t in ties) / ((m + n) * (m + n - 1)))
    return min(1.0, 2 * NormalDist().cdf((low + 0.5 - m * n / 2) / math.sqrt(spread))) if spread else 1.0


@cache
def _arrangements(m: int, n: int, u: int) -> int:
    """In how many orders of m and n values the statistic is u."""
    if u < 0 or not (m and n):
        return int(u == 0)
    return _arrangements(m - 1, n, u - n) + _arrangements(m, n - 1, u)


def shown(value: float, key: str) -> str:
    """A value or a difference: a duration, or a number of hits."""
    text = f"{abs(value):,.0f}" if key == "hits" else duration(abs(value))
    return f"-{text}" if value < 0 else text


def lines(rows: Iterable[Change], key: str, what: str, style: Style, width: int | None = None) -> Iterator[str]:
    """A table. `what`: FUNCTION or STACK. On a terminal of `width` columns, some give way and names are cut."""
    rows = list(rows)
    columns = dict.fromkeys(["A", "B", "B - A", "CHANGE", *["P"] * any(row.p is not None for row in rows)], _WIDTH)
    names, heading = [row.name for row in rows], f"{what}, {key}"
    if width is not None:
        columns = fitting(columns, ({name: 0} for name in _GIVING_WAY), [*names, heading], width - 2)
        names = shortened(names, room(columns, width - 2))
        heading = heading[: room(columns, width - 2)]
    yield style.dim(f"{' '.join(f'{head:>{_WIDTH}}' for head in columns)}  {heading}")
    for row, name in zip(rows, names, strict=True):
        texts = {
            "A": shown(row.before, key),
            "B": shown(row.after, key),
            "B - A": ("+" if row.change > 0 else "") + shown(row.change, key),
            "CHANGE": f"only in {row.only_in}" if row.only_in else f"{100 * row.relative:+.1f} %",
            "P": f"{row.p:.3f}" if row.p is not None else "",
        }
        yield f"{' '.join(f'{texts[head]:>{_WIDTH}}' for head in columns)}  {style.bold(name)}"


def objects(rows: Iterable[Change]) -> list[dict[str, Any]]:
    """The rows for JSON. `relative` is null where there was nothing before."""
    return [
        {
            "name": row.name,
            "before": round(row.before),
            "after": round(row.after),
            "change": round(row.change),
            "relative": round(row.relative, 4) if math.isfinite(row.relative) else None,
            "only_in": row.only_in or None,
            "p": row.p if row.p is None else round(row.p, 6),
        }
        for row in rows
    ]


def mean_stacks(runs: Sequence[Run]) -> dict[tuple[str, ...], float]:
    """The mean nanoseconds of each stack over some runs."""
    found: dict[tuple[str, ...], float] = {}
    for run in runs:
        for frames, value in run.stacks.items():
            found[frames] = found.get(frames, 0.0) + value / len(runs)
    return found
