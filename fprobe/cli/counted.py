"""Counts and times for `fprobe stat`: of functions, of functions by caller or thread."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.actions import Stat
from fprobe.calls.texts import texts_in
from fprobe.cli.failure import Failure
from fprobe.cli.matching import module_of, owner_of
from fprobe.events.selections import HANDLERS, Question, Selections
from fprobe.report.buckets import BUCKETS
from fprobe.report.counts import CPU, SELF, Calls, FunctionStat
from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.runtime import runtime
from ftrace.core.sites.locations import Skipped
from ftrace.hit.account import BY_VALUE
from ftrace.hit.texts import TEXTS_SIZE
from sandbox.process.once import cached_property
from sandbox.x86_64.tsc import ticks_per_ns

if TYPE_CHECKING:
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.run.values import Values


class Row(NamedTuple):
    """The statistics of a function. `symbol`: its mangled name.

    `origin`: the caller, or the thread's number, if calls are grouped by that.
    """

    name: str
    stat: FunctionStat
    origin: str | int | None = None
    symbol: str = ""
    module: str = ""
    owner: str = ""
    """What follows the name in a text."""


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
            Row(
                match.names[site.address],
                stat,
                self._origin(stat),
                site.symbol.name,
                module_of(site.symbol),
                owner_of(site.symbol),
            )
            for site in match.sites
            for stat in found.get(site.address) or [self._uncalled(site.address)]
        ]

    def _uncalled(self, address: int) -> FunctionStat:
        return FunctionStat(Calls(address, buckets=[0] * BUCKETS, measures=self._measures), ticks_per_ns())

    def _origin(self, stat: FunctionStat) -> str | int | None:
        if self._by == "function" or not stat.hits:
            return None
        return stat.by if self._by == "thread" else _place(stat.by)


class Selecting(Counting):
    """The same of the calls that answer a question about their values. In `match`, functions whose calls cannot are skipped."""

    def __init__(self, by: str, cpu: bool, question: Question, match: MatchedFunctions) -> None:
        super().__init__("function", cpu)
        self._by = by
        self._texts: Any = (ctypes.c_char * TEXTS_SIZE)() if question.has_texts else None
        texts = 0 if self._texts is None else ctypes.addressof(self._texts)
        self._selections = _selections(question, match, texts)
        self.action = SelectedStat(self._selections, by=by, cpu=cpu)

    def _origin(self, stat: FunctionStat) -> str | int | None:
        if self._by in ("caller", "thread"):
            return super()._origin(stat)
        if self._texts is not None and stat.hits:
            return self._kept_texts.get(stat.by)
        is_negative = stat.by >> 63 and stat.ip in self._selections.signed
        return (stat.by - (1 << 64) * is_negative) if stat.hits and self._by != "function" else None

    @cached_property
    def _kept_texts(self) -> dict[int, str]:
        """The texts by their numbers, when all calls have been made."""
        return texts_in(self._texts.raw)


def counting(by: str, cpu: bool, question: Values | None, match: MatchedFunctions) -> Counting:
    """Counts all calls of the functions, or those that answer a question. Raises Failure if none can."""
    return Selecting(by, cpu, Question(*question.question), match) if question else Counting(by, cpu)


def _selections(question: Question, match: MatchedFunctions, texts: int) -> Selections:
    """`texts`: see `Selections`. Raises Failure if the calls of none of the functions can answer the question."""
    found, sites, reason = Selections(question, texts), [], ""
    for site in match.sites:
        try:
            found.add(f"{site.symbol.module}:{site.symbol.name}", site.address)
            sites.append(site)
        except OSError as error:
            reason = error.strerror or str(error)
            match.skipped.append(Skipped(site.symbol.readable, reason))
    if not sites:
        raise Failure(f"the calls of {match.skipped[-1].name} cannot be selected: {reason}")
    match.sites[:] = sites
    return found


class SelectedStat(Stat):
    """Counts and times the calls that are selected. `by`: function, caller, thread or arg(NAME)."""

    def __init__(self, selections: Selections, *, by: str, cpu: bool) -> None:
        super().__init__(by=by if by in ("caller", "thread") else "function", self_time=True, cpu=cpu)
        if by.startswith("arg"):
            self._by = BY_VALUE
        self._selections = selections
        self.entry_data_size += 8 * selections.words

    def prepare(self, functions: int) -> None:
        super().prepare(functions)
        self._selections.publish(ctypes.addressof(self._table))
        keep = (self._cells, self._table, self._selections)
        made = [
            BoundHandler(runtime().image.address(name), plain=True, registers=fields, keep=keep)
            for name, fields in HANDLERS.items()
        ]
        self.entry, self.exit = made

    @property
    def state(self) -> int:
        return self._selections.address


def _place(address: int) -> str:
    """`function+0xoffset [library]`; the address in hexadecimal if nothing is known of it."""
    from fprobe.run.launcher.names import Named
    from sandbox.images.process_text import symbol_at
    from sandbox.symbols.file_names import short_name

    symbol = symbol_at(address)
    if symbol is None:
        return f"{address:#x}"
    return str(Named(f"{symbol.readable}+{address - symbol.address:#x}", short_name(symbol.module)))
