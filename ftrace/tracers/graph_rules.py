"""What function_graph leaves out: set_graph_function, set_graph_notrace, max_graph_depth, tracing_thresh."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from ftrace.filters.glob import Match, parse
from ftrace.sites.block import SiteBlock
from ftrace.sites.locations import Selection
from ftrace.tracer import tracer
from ftrace.tracers.address_sets import AddressSets
from ftrace.tracers.graph_hit import GraphRules
from sandbox.process.cached import cached_property

FUNCTIONS, NOTRACE = "functions", "notrace"
"""Which of the two selections is meant: of the functions that are shown, or of those that are not, each with what they call."""


class Rules:
    """The rules of all function_graph tracers. Functions of modules that have gone match nothing."""

    def __init__(self) -> None:
        self._selected = {FUNCTIONS: Selection(), NOTRACE: Selection()}
        self._tables = AddressSets()

    @cached_property
    def _native(self) -> Any:
        return GraphRules.ctypes()

    @property
    def address(self) -> int:
        """Of the native GraphRules."""
        return ctypes.addressof(self._native)

    @property
    def are_set(self) -> bool:
        """Whether there is any."""
        return any(bytes(self._native))

    def selected(self, which: str) -> Selection:
        """The functions of one selection that are there."""
        return self._selected[which] & tracer().table.everything()

    def select(self, which: str, functions: Selection) -> None:
        """Replace one selection; an empty one is no rule."""
        if self._module_comes not in tracer().when_coming:
            tracer().when_coming.append(self._module_comes)
        self._selected[which] = functions
        setattr(self._native, which, self._tables.replace(which, [each.ip for each in functions.locations()]))

    def _module_comes(self, _block: SiteBlock) -> None:
        """Its functions may have the addresses of others that were selected and are gone."""
        for which, functions in self._selected.items():
            if functions and self.selected(which) != functions:
                self.select(which, self.selected(which))

    def forget_tables(self) -> None:
        """Free the tables that are not in use, when no hit looks into them any more."""
        self._tables.forget_replaced()

    @property
    def max_depth(self) -> int:
        """How many calls deep is shown; 0: no limit."""
        return int(self._native.max_depth)

    @max_depth.setter
    def max_depth(self, depth: int) -> None:
        self._native.max_depth = depth

    @property
    def threshold(self) -> int:
        """tracing_thresh: only calls of at least so many nanoseconds are shown, by their returns; 0: all."""
        return int(self._native.threshold)

    @threshold.setter
    def threshold(self, nanoseconds: int) -> None:
        self._native.threshold = nanoseconds

    def sleep_counts(self, counts: bool) -> None:
        """Whether the time that a thread slept is part of a call's duration."""
        self._native.no_sleep = int(not counts)


graph_rules = Rules()
"""Those of the process."""


def edited(base: Selection, token: str) -> Selection:
    """`base` with what `glob` adds or `!glob` removes. Raises OSError(EINVAL) if that is nothing. ftrace_set_graph..()."""
    pattern = parse(token)
    found = Selection() if pattern.kind is Match.INDEX else tracer().table.select(pattern)
    if pattern.negated:
        found = found & base
    if not found:
        raise OSError(errno.EINVAL, f"no function matches {token!r}")
    return base - found if pattern.negated else base | found
