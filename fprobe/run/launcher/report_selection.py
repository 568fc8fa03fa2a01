"""The contents of a report, and the calls that they select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from fprobe.report.counts import FunctionStat
from fprobe.report.order import Order
from fprobe.report.tables import StatRow, origin_object
from fprobe.run.values import Values

if TYPE_CHECKING:
    from fprobe.run.launcher.call_events import CallEvents
    from fprobe.run.launcher.native_maps import Contents
    from fprobe.run.launcher.probe_events import RecordedEvents
    from fprobe.run.launcher.process import Process
    from fprobe.run.launcher.values import ValueTable


class ReportSelection(NamedTuple):
    """Patterns of the functions to show in tables, in histograms, call by call, and with their callers.

    `by`: function, caller, thread or arg(NAME).
    """

    stats: tuple[str, ...]
    hists: tuple[str, ...]
    traces: tuple[str, ...]
    by: str
    native: str = ""
    """File and names of native handlers. If set, the functions of `traces` have these handlers and are not recorded."""
    events: tuple[str, ...] = ()
    """Definitions of probe events."""
    stacks: tuple[str, ...] = ()
    order: Order = Order()
    """Of the rows of tables and histograms."""
    values: Values | None = None
    """What is asked of the values of arguments: histograms are of these, not of durations."""
    stack_values: Values | None = None
    """What is asked of the values of arguments of calls with stacks: these count, not times."""

    @property
    def stack_unit(self) -> str:
        """What counts of a stack: the name of an argument, or calls; empty: time."""
        if self.stack_values is None:
            return ""
        return self.stack_values.names[1] or "calls"


class Recorded(NamedTuple):
    """By process id: calls, records of probe events, maps of native handlers, values of arguments; empty if not wanted."""

    calls: Mapping[int, CallEvents]
    events: Mapping[int, RecordedEvents]
    maps: Mapping[int, Contents]
    values: Mapping[int, ValueTable] = {}


def stat_rows(
    process: Process, rate: float, selection: ReportSelection, patterns: Sequence[str]
) -> tuple[list[StatRow], int]:
    """The rows of a table, and the number of those that are not shown. `rate`: ticks per nanosecond."""
    return selection.order.apply(
        StatRow(
            str(process.names.function(calls.ip)),
            FunctionStat(calls, rate),
            process.group(calls, selection.by),
            origin_object(selection.by, process.origin(calls, selection.by)),
        )
        for calls in process.grouped(selection.by)
        if process.matches(patterns, calls.ip)
    )


def of_patterns(process: Process, call_events: CallEvents, patterns: Sequence[str]) -> CallEvents:
    """The recorded entries and returns of the functions that one of these patterns matches."""
    return call_events._replace(events=[event for event in call_events.events if process.matches(patterns, event.ip)])
