"""Counts and times for `fprobe stat`: of functions, of functions by caller or thread, by duration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.actions import Stat, ticks_per_ns
from fprobe.calls.text import duration_text
from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.run import BY

if TYPE_CHECKING:
    from fprobe.actions import Action, FunctionStat
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.run.launcher.results import Calls

_SHARES = (50, 90, 99)
_WIDTH = 40


class Row(NamedTuple):
    """The statistics of a function. `returned`: the number of timed calls; `total_ns`: of those.

    `origin`: the caller, or the thread's number, if calls are grouped by that and there are any.
    """

    name: str
    hits: int
    missed: int
    returned: int
    total_ns: int
    min_ns: int = 0
    max_ns: int = 0
    origin: str | int | None = None

    @property
    def average_ns(self) -> float:
        """The average duration of a timed call; 0 if there is none."""
        return self.total_ns / self.returned if self.returned else 0.0


class CallsByFunction:
    """Calls by function. `with_hist`: also by duration."""

    def __init__(self, with_hist: bool) -> None:
        self.action = Stat(durations=with_hist)

    def rows(self, match: MatchedFunctions) -> list[Row]:
        """A row for each function that was attached, called or not."""
        found = self.action.functions()
        rows = []
        for site in match.sites:
            known = found.get(site.address)
            row = Row(site.symbol.name, 0, 0, 0, 0)
            if known:
                times = (round(time) for time in (known.total_ns, known.min_ns, known.max_ns))
                row = Row(site.symbol.name, known.hits, known.missed, known.returned, *times)
            rows.append(row)
        return rows


class CallsByOrigin:
    """A table of calls by function and caller or thread, as that of `fprobe run`. `by`: caller or thread.

    Raises Failure if there is no memory for it.
    """

    def __init__(self, by: str) -> None:
        from fprobe.run import session
        from fprobe.run.tracee.table import Calls, Table

        try:
            self._counts, self._journal = session.create(session.Settings())
            self.action = Calls(Table(self._counts, BY[by], False), False)
        except OSError as error:
            raise Failure(f"there is no memory for counting by {by}: {error.strerror}", FAILED) from None
        self._by = by

    def rows(self, match: MatchedFunctions) -> list[Row]:
        """A row for each function and caller or thread with calls in this process, and one for each function without calls."""
        from fprobe.run.launcher import results

        found = results.read(self._counts, self._journal).processes
        calls = [each for process in found if process.pid == os.getpid() for each in process.calls.values()]
        names = {site.address: site.symbol.name for site in match.sites}
        called = {each.ip for each in calls}
        idle = [Row(name, 0, 0, 0, 0) for address, name in names.items() if address not in called]
        return [self._row(names[each.ip], each) for each in calls] + idle

    def _row(self, name: str, calls: Calls) -> Row:
        total, least, most = (round(ticks / ticks_per_ns()) for ticks in (calls.total, calls.least, calls.most))
        origin = calls.by if self._by == "thread" else _place(calls.by)
        return Row(name, calls.hits, calls.missed, calls.returns, total, least, most, origin)


def _place(address: int) -> str:
    """`function+0xoffset [library]`; the address in hexadecimal if nothing is known of it."""
    from fprobe.run.launcher.names import Named
    from sandbox.images.process_text import symbol_at
    from sandbox.symbols.file_names import short_name

    symbol = symbol_at(address)
    if symbol is None:
        return f"{address:#x}"
    return str(Named(f"{symbol.name}+{address - symbol.address:#x}", short_name(symbol.module)))


def counting(by: str, with_hist: bool) -> CallsByFunction | CallsByOrigin:
    """Counts by function, caller or thread."""
    return CallsByFunction(with_hist) if by == "function" else CallsByOrigin(by)


def durations_by_name(match: MatchedFunctions, action: Action) -> dict[str, FunctionStat]:
    """The statistics of functions with histograms of their timed calls, by name; none if `action` makes no histograms."""
    found = action.functions() if isinstance(action, Stat) else {}
    known = ((site.symbol.name, found.get(site.address)) for site in match.sites)
    return {name: each for name, each in known if each is not None and each.durations}


def duration_lines(found: Mapping[str, FunctionStat]) -> Iterator[str]:
    """For each function: its percentiles, and a bar for each power of two."""
    for name, stat in found.items():
        shares = ", ".join(f"p{share} {duration_text(stat.percentile(share)).strip()}" for share in _SHARES)
        yield f"{name}: {shares}"
        largest = max(stat.durations.values())
        for start, calls in sorted(stat.durations.items()):
            yield f"  {duration_text(start)}  {calls:10,} |{'#' * max(1, round(_WIDTH * calls / largest))}"


def duration_objects(found: Mapping[str, FunctionStat]) -> dict[str, dict[str, Any]]:
    """The same for JSON, by name."""
    return {name: _object(stat) for name, stat in found.items()}


def _object(stat: FunctionStat) -> dict[str, Any]:
    shares = {f"p{share}_ns": round(stat.percentile(share)) for share in _SHARES}
    buckets = ((start, _end_of(start), calls) for start, calls in sorted(stat.durations.items()))
    return shares | {
        "histogram": [{"low_ns": round(low), "high_ns": round(high), "count": calls} for low, high, calls in buckets]
    }


def _end_of(start: float) -> float:
    """The end of a bucket of durations that starts there, in nanoseconds: there are four for each power of two of ticks."""
    ticks = round(start * ticks_per_ns())
    return (ticks + max(1, 1 << ticks.bit_length() - 1 >> 2)) / ticks_per_ns()
