"""The report of a run as an object for JSON. All times are in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fprobe.calls.call_values import CallValues
from fprobe.report.tables import stat_object
from fprobe.run.launcher import values
from fprobe.run.launcher.call_events import CallEvents
from fprobe.run.launcher.call_events import calls as calls_of
from fprobe.run.launcher.process import Process, has_total, total_of
from fprobe.run.launcher.remarks import why_nothing
from fprobe.run.launcher.report_selection import Recorded, ReportSelection, of_patterns, stat_rows
from fprobe.run.launcher.results import Results
from fprobe.run.launcher.stack_tables import stack_objects
from fprobe.run.values import Values


def document(
    results: Results, rate: float, selection: ReportSelection, recorded: Recorded, *, is_empty: bool = False
) -> dict[str, Any]:
    """The report as an object. `rate`: ticks per nanosecond; `is_empty`: whether nothing was counted."""
    return {
        "interrupted": results.is_interrupted,
        "nothing_counted": why_nothing(results) if is_empty else None,
        "processes": [_process(each, rate, selection, recorded) for each in results.processes],
        "total": _total(results, rate, selection),
        **_total_values(recorded, selection),
        "not_covered": [{"pid": pid, **each._asdict()} for pid, each in results.not_covered.items()],
        "more_not_covered": results.uncounted,
    }


_ROWS = {
    "functions": "function", "calls": "call", "stacks": "stack", "lines": "line", "probe_events": "event", "values": "value",
    "maps": "map",
}  # fmt: skip
"""Members of a process in the report, and the types of their objects as rows."""


def rows(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a report has of each process, as objects with a `type` and the process id."""
    for process in document["processes"]:
        for member, kind in _ROWS.items():
            for each in process.get(member, ()):
                yield {"type": kind, "pid": process["pid"], **each}


def _total(results: Results, rate: float, selection: ReportSelection) -> list[dict[str, Any]] | None:
    """The rows for all processes together; None if there is one, or if callers or threads are distinguished."""
    calling = [process for process in results.processes if process.calls]
    is_asked = has_total(selection.by) and bool(selection.stats or selection.hists)
    return _functions(total_of(calling, selection.by), rate, selection)[0] if is_asked and len(calling) > 1 else None


def _process(process: Process, rate: float, selection: ReportSelection, recorded: Recorded) -> dict[str, Any]:
    functions, left_out = _functions(process, rate, selection)
    found = {
        "pid": process.pid,
        "command": process.command,
        "forked_by": process.parent,
        "attached": process.attached,
        "skipped": [{"name": name, "reason": reason} for name, reason in process.skipped],
        "not_found": process.not_found,
        "errors": process.errors,
        "remarks": process.remarks,
        "calls_without_place": process.dropped,
        "functions": functions,
        "left_out": left_out,
    }
    return found | _recorded(process, rate, selection, recorded)


def _functions(process: Process, rate: float, selection: ReportSelection) -> tuple[list[dict[str, Any]], int]:
    """The rows of the tables and of the histograms, and the number of those not shown. The latter have their buckets, too."""
    shown, left_out = stat_rows(process, rate, selection, (*selection.stats, *selection.hists))
    objects = [
        {**process.names.function(row.stat.ip).as_object(), **row.origin}
        | stat_object(row.stat, with_histogram=process.matches(selection.hists, row.stat.ip))
        for row in shown
    ]
    return objects, left_out


def _recorded(process: Process, rate: float, selection: ReportSelection, recorded: Recorded) -> dict[str, Any]:
    """The members that only some options add."""
    found: dict[str, Any] = {}
    if (call_events := recorded.calls.get(process.pid)) is not None:
        found |= {"events_lost": call_events.lost, "calls": list(_calls(process, call_events, selection.traces))}
    if (events := recorded.events.get(process.pid)) is not None:
        found |= {"probe_events_lost": events.lost, "probe_events": events.objects()}
    if selection.stacks:
        found |= stack_objects(process, rate, selection)
    if selection.values is not None and (table := recorded.values.get(process.pid)) is not None:
        found |= _values(table, selection.values, selection)
    if (maps := recorded.maps.get(process.pid)) is not None:
        found["maps"] = list(maps.objects())
    return found


def _values(table: values.ValueTable, asked: Values, selection: ReportSelection) -> dict[str, Any]:
    return {
        "values": values.objects(table, asked, selection.order),
        "values_left_out": values.left_out(table, asked, selection.order),
        "values_without_place": table.dropped,
    }


def _total_values(recorded: Recorded, selection: ReportSelection) -> dict[str, Any]:
    """The member `total_values`, if values are asked for: their rows over all processes; None where `total` is."""
    if selection.values is None:
        return {}
    total = values.total_over(recorded.values, selection.values)
    return {"total_values": None if total is None else values.objects(total, selection.values, selection.order)}


def _calls(process: Process, call_events: CallEvents, patterns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The recorded calls in order of their entries. A call whose return was not recorded has no duration and no result."""
    call_values = CallValues(process.names)
    begun = [call for call, begins in calls_of(of_patterns(process, call_events, patterns).events) if begins]
    first = begun[0].entry.time if begun else 0
    for call in begun:
        times = {"time_ns": call.entry.time - first, "tid": call.thread, "depth": call.depth}
        described = process.names.function(call.ip).as_object()
        made = {
            "function": described.pop("name"),
            **described,
            **times,
            "caller": str(process.names.place(call.entry.value)),
            **call_values.arguments_object(call.ip, call.entry.values),
        }
        if call.leave is not None:
            made |= {"duration_ns": call.duration}
            made |= call_values.result_object(call.ip, call.leave.value, call.leave.values)
        yield made
