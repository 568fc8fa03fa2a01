"""Counts and times for `fprobe stat`: of functions, of functions by caller or thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fprobe.actions import Stat
from fprobe.report.buckets import BUCKETS
from fprobe.report.counts import CPU, SELF, Calls, FunctionStat
from sandbox.x86_64.tsc import ticks_per_ns

if TYPE_CHECKING:
    from fprobe.cli.matching import MatchedFunctions


class Row(NamedTuple):
    """The statistics of a function. `symbol`: its mangled name.

    `origin`: the caller, or the thread's number, if calls are grouped by that.
    """

    name: str
    stat: FunctionStat
    origin: str | int | None = None
    symbol: str = ""


class Counting:
    """Calls by function, caller or thread, and by duration. `cpu`: with CPU time."""

    def __init__(self, by: str, cpu: bool) -> None:
        self._by, self._measures = by, CPU if cpu else SELF
        self.action = Stat(by=by, self_time=True, cpu=cpu)

    def rows(self, match: MatchedFunctions) -> list[Row]:
        """A row for each function, and caller or thread, that was called, and one for each function that was not."""
        found: dict[int, list[FunctionStat]] = {}
        for stat in self.action.origins():
            found.setdefault(stat.ip, []).append(stat)
        return [
            Row(match.names[site.address], stat, self._origin(stat), site.symbol.name)
            for site in match.sites
            for stat in found.get(site.address) or [self._uncalled(site.address)]
        ]

    def _uncalled(self, address: int) -> FunctionStat:
        return FunctionStat(Calls(address, buckets=[0] * BUCKETS, measures=self._measures), ticks_per_ns())

    def _origin(self, stat: FunctionStat) -> str | int | None:
        if self._by == "function" or not stat.hits:
            return None
        return stat.by if self._by == "thread" else _place(stat.by)


def _place(address: int) -> str:
    """`function+0xoffset [library]`; the address in hexadecimal if nothing is known of it."""
    from fprobe.run.launcher.names import Named
    from sandbox.images.process_text import symbol_at
    from sandbox.symbols.file_names import short_name

    symbol = symbol_at(address)
    if symbol is None:
        return f"{address:#x}"
    return str(Named(f"{symbol.readable}+{address - symbol.address:#x}", short_name(symbol.module)))
