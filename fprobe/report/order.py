"""The order of the rows of a table, and which of them are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

from fprobe.report.counts import FunctionStat

FIELDS: dict[str, str | int] = {
    "total": "total_ns",
    "self": "self_ns",
    "average": "average_ns",
    "min": "min_ns",
    "p50": 50,
    "p90": 90,
    "p99": 99,
    "max": "max_ns",
    "cpu": "cpu_ns",
    "hits": "hits",
}
"""The columns of a table: attributes of FunctionStat, or percentiles. A table is sorted by one of them, or by `name`."""
SORT_KEYS = (*FIELDS, "name")


class _Row(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def stat(self) -> FunctionStat: ...


R = TypeVar("R", bound=_Row)


def value(stat: FunctionStat, column: str) -> float:
    """What a column shows: nanoseconds, or the number of hits."""
    field = FIELDS[column]
    return stat.percentile(field) if isinstance(field, int) else float(getattr(stat, field))


class Order(NamedTuple):
    """The order by a column, the largest first, or by name; at most `most` rows of functions with at least `min_hits` hits."""

    sort: str = "total"
    most: int | None = None
    min_hits: int = 0

    def apply(self, rows: Iterable[R]) -> tuple[list[R], int]:
        """The rows that are shown, in order, and the number of the others."""
        given = list(rows)
        found = sorted(
            (row for row in given if row.stat.hits >= self.min_hits), key=lambda row: (row.name, row.stat.by)
        )
        if self.sort != "name":
            found.sort(key=lambda row: (-value(row.stat, self.sort), -row.stat.hits))
        shown = found[: self.most]
        return shown, len(given) - len(shown)

    def left_out(self, number: int) -> str:
        """A sentence about the rows that are not shown; empty if there are none."""
        why = " or ".join(
            [f"fewer than {self.min_hits:,} hits (--min-hits)"] * bool(self.min_hits)
            + [f"after the first {self.most or 0:,} (--top)"] * (self.most is not None)
        )
        rows = "1 row is" if number == 1 else f"{number:,} rows are"
        return f"{rows} not shown: {why}" if number else ""
