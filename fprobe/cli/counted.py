"""Counts and times for `fprobe stat`: of functions, of functions by caller or thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from fprobe.actions import Stat
from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.run import BY
from fprobe.report.counts import Calls, FunctionStat
from sandbox.x86_64.tsc import ticks_per_ns

if TYPE_CHECKING:
    from fprobe.cli.matching import MatchedFunctions


class Row(NamedTuple):
    """The statistics of a function. `origin`: the caller, or the thread's number, if calls are grouped by that."""

    name: str
    stat: FunctionStat
    origin: str | int | None = None


def _uncalled(address: int) -> FunctionStat:
    return FunctionStat(Calls(address), ticks_per_ns())


class CallsByFunction:
    """Calls by function. `with_hist`: also by duration."""

    def __init__(self, with_hist: bool) -> None:
        self.action = Stat(durations=with_hist)

    def rows(self, match: MatchedFunctions) -> list[Row]:
        """A row for each function that was attached, called or not."""
        found = self.action.functions()
        return [Row(site.symbol.name, found.get(site.address) or _uncalled(site.address)) for site in match.sites]


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
        idle = [Row(name, _uncalled(address)) for address, name in names.items() if address not in called]
        return [self._row(names[each.ip], each) for each in calls] + idle

    def _row(self, name: str, calls: Calls) -> Row:
        origin = calls.by if self._by == "thread" else _place(calls.by)
        return Row(name, FunctionStat(calls, ticks_per_ns()), origin)


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
