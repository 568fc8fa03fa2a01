"""Calls of functions, told apart by caller or thread: `fprobe stat --by`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fprobe.actions import ticks_per_ns
from fprobe.cli.counted import Row
from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.run import BY
from fprobe.run import results, session
from fprobe.run.names import Named, short
from fprobe.run.probing import Calls
from fprobe.run.table import Table
from sandbox.symbols.process_text import symbol_at

if TYPE_CHECKING:
    from fprobe.cli.match import Match


class Origins:
    """A table of calls by function and caller or thread, as that of `fprobe run`. `by`: caller or thread.

    Raises Failure if there is no memory for it.
    """

    def __init__(self, by: str) -> None:
        try:
            self._counts, self._journal = session.create(session.Settings())
            self.action = Calls(Table(self._counts, BY[by], False), False)
        except OSError as error:
            raise Failure(f"there is no memory for counting by {by}: {error.strerror}", FAILED) from None
        self._by = by

    def rows(self, match: Match) -> list[Row]:
        """A row for each function and caller or thread with calls in this process, and one for each function without calls."""
        found = results.read(self._counts, self._journal).processes
        calls = [each for process in found if process.pid == os.getpid() for each in process.calls.values()]
        names = {site.address: site.symbol.name for site in match.sites}
        called = {each.ip for each in calls}
        idle = [Row(name, 0, 0, 0) for address, name in names.items() if address not in called]
        return [self._row(names[each.ip], each) for each in calls] + idle

    def _row(self, name: str, calls: results.Calls) -> Row:
        total, least, most = (round(ticks / ticks_per_ns()) for ticks in (calls.total, calls.least, calls.most))
        origin = calls.by if self._by == "thread" else place(calls.by)
        return Row(name, calls.hits, calls.missed, total, least, most, origin)


def place(address: int) -> str:
    """`function+0xoffset [library]`; the address in hexadecimal if nothing is known of it."""
    symbol = symbol_at(address)
    if symbol is None:
        return f"{address:#x}"
    return str(Named(f"{symbol.name}+{address - symbol.address:#x}", short(symbol.module)))
