"""Settings that limit function_graph: set_graph_function, set_graph_notrace, max_graph_depth, tracing_thresh."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Collection
from typing import Any

from ftrace.core.glob import PatternKind, parse
from ftrace.core.runtime import AddressTable, runtime
from ftrace.core.sites.block import SiteBlock
from ftrace.core.sites.locations import LocationSet
from ftrace.core.tracer import tracer
from ftrace.hit.tracers.graph_hit import GraphRules
from sandbox.process import hooks
from sandbox.process.once import cached_property

FUNCTIONS, NOTRACE = "functions", "notrace"
"""One of the two selections: functions that are shown, or that are not shown; both include the functions they call."""


class AddressSets:
    """Native tables of functions' addresses, each of which can be replaced while hits look into it."""

    def __init__(self) -> None:
        self._in_use: dict[str, AddressTable] = {}
        """Name of the selection -> its table."""
        self._replaced: list[AddressTable] = []

    def replace(self, which: str, members: Collection[int]) -> int:
        """The address of a new native table for one set; 0 if it is empty. The table of before lives on."""
        if before := self._in_use.pop(which, None):
            self._replaced.append(before)
        if not members:
            return 0
        published: list[int] = []
        table = self._in_use[which] = AddressTable(runtime().image, published.append)
        for member in members:
            if member:  # the table marks its free places with 0
                table.set(member, 1)
        return published[-1]

    def forget_replaced(self) -> None:
        """Free the tables that were replaced, unless a hit may still be looking into one."""
        if runtime().quiesce():
            self._replaced.clear()


class Rules:
    """The rules of all function_graph tracers. Functions of unloaded modules match nothing."""

    def __init__(self) -> None:
        self._selected = {FUNCTIONS: LocationSet(), NOTRACE: LocationSet()}
        self._tables = AddressSets()

    @cached_property
    def _native(self) -> Any:
        return GraphRules.ctypes()

    @property
    def address(self) -> int:
        """Address of the native GraphRules."""
        return ctypes.addressof(self._native)

    @property
    def are_set(self) -> bool:
        """Whether any rule is set."""
        return any(bytes(self._native))

    def selected(self, which: str) -> LocationSet:
        """The functions of one selection whose modules are loaded."""
        return self._selected[which] & tracer().table.everything()

    def select(self, which: str, functions: LocationSet) -> None:
        """Replace one selection; an empty selection removes the rule."""
        hooks.when_coming.add(self._module_comes)
        self._selected[which] = functions
        setattr(self._native, which, self._tables.replace(which, [each.ip for each in functions.each()]))

    def _module_comes(self, _block: SiteBlock) -> None:
        """Rebuild the tables: new functions may have the addresses of selected functions that were unloaded."""
        for which, functions in self._selected.items():
            if functions and self.selected(which) != functions:
                self.select(which, self.selected(which))

    def forget_tables(self) -> None:
        """Free the replaced tables, when no hit reads them any more."""
        self._tables.forget_replaced()

    @property
    def max_depth(self) -> int:
        """The maximum depth of calls that are shown; 0: no limit."""
        return int(self._native.max_depth)

    @max_depth.setter
    def max_depth(self, depth: int) -> None:
        self._native.max_depth = depth

    @property
    def threshold(self) -> int:
        """tracing_thresh in nanoseconds: only returns of calls that took at least this long are recorded; 0: all."""
        return int(self._native.threshold)

    @threshold.setter
    def threshold(self, nanoseconds: int) -> None:
        self._native.threshold = nanoseconds

    def sleep_counts(self, counts: bool) -> None:
        """Choose whether a call's duration includes the time that the thread slept."""
        self._native.no_sleep = int(not counts)


graph_rules = Rules()
"""The rules of the process."""


def edited(base: LocationSet, token: str) -> LocationSet:
    """`base` with the functions that `glob` adds or `!glob` removes. Raises OSError(EINVAL) if no function matches."""
    pattern = parse(token)
    found = LocationSet() if pattern.kind is PatternKind.INDEX else tracer().table.select(pattern)
    if pattern.negated:
        found = found & base
    if not found:
        raise OSError(errno.EINVAL, f"no function matches {token!r}; available_filter_functions lists the functions")
    return base - found if pattern.negated else base | found
