"""Counts and times of functions, as `fprobe stat` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fprobe.actions import Stat

if TYPE_CHECKING:
    from fprobe.cli.match import Match


class Row(NamedTuple):
    """The statistics of a function. `total_ns`: of the timed calls, of which there are `hits - missed`.

    `origin`: the caller, or the thread's number, if calls are told apart by that and there are any.
    """

    name: str
    hits: int
    missed: int
    total_ns: int
    min_ns: int = 0
    max_ns: int = 0
    origin: str | int | None = None

    @property
    def average_ns(self) -> float:
        """The average duration of a timed call; 0 if there is none."""
        timed = self.hits - self.missed
        return self.total_ns / timed if timed > 0 else 0.0


class Functions:
    """Calls by function. `with_hist`: also by duration."""

    def __init__(self, with_hist: bool) -> None:
        self.action = Stat(durations=with_hist)

    def rows(self, match: Match) -> list[Row]:
        """A row for each function that was attached, called or not."""
        found = self.action.functions()
        rows = []
        for site in match.sites:
            known = found.get(site.address)
            row = Row(site.symbol.name, 0, 0, 0)
            if known:
                times = (round(time) for time in (known.total_ns, known.min_ns, known.max_ns))
                row = Row(site.symbol.name, known.hits, known.missed, *times)
            rows.append(row)
        return rows
