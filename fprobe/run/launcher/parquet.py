"""The calls, stacks and records of a run as rows of a Parquet file, in the columns of `fprobe.export.columns.layout`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from fprobe.export.columns.layout import column_names, description, origin_of, schema, wall_clock_offset
from fprobe.export.formats import EventFormat
from fprobe.export.records import objects
from fprobe.report.tree import folded_stack
from fprobe.run.launcher.call_events import CallWords, calls
from fprobe.run.launcher.flame import stacks
from fprobe.run.launcher.report_selection import Recorded, ReportSelection, of_patterns
from fprobe.run.launcher.results import Process, Results
from sandbox.process.printable import utf8

if TYPE_CHECKING:
    from fprobe.export.columns.parquet import Sink
    from fprobe.run.launcher.probe_events import RecordedEvents

_ROWS = 1 << 16
_CLOCK = "local"


def write(sink: Sink, found: Results, selection: ReportSelection, recorded: Recorded, rate: float) -> None:
    """Write all that was recorded, and close the file. `rate`: ticks per nanosecond.

    Raises OSError; after a full disk the file is whole.
    """
    offset = wall_clock_offset()
    formats = _formats(recorded.events.values())
    columns = column_names(formats.values())
    layout = schema(columns, formats)
    rows = _rows(found, selection, recorded, rate, offset, {formats[n]: c for n, c in columns.items()})
    lost = sum(each.lost for each in recorded.calls.values()) + sum(each.lost for each in recorded.events.values())
    processes = [origin_of(each.pid, each.command) for each in found.processes]
    failure: OSError | None = None
    try:
        while some := list(islice(rows, _ROWS)):
            sink.write(_table(some, layout))
    except OSError as error:
        failure = error
    try:
        sink.finish(layout, description(_CLOCK, offset, processes, lost))
    finally:
        sink.close()
    if failure is not None:
        raise failure


def _table(rows: list[dict[str, Any]], layout: Any) -> Any:
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(rows, schema=layout)
    except UnicodeEncodeError:
        return pa.Table.from_pylist(utf8(rows), schema=layout)


def _formats(events: Iterable[RecordedEvents]) -> dict[int, EventFormat]:
    """The different events of all processes, which may number them differently, with numbers of ours."""
    found = dict.fromkeys(event._replace(id=0) for each in events for event in each.formats.values())
    return {number: event._replace(id=number) for number, event in enumerate(found)}


def _rows(
    found: Results, selection: ReportSelection, recorded: Recorded, rate: float, offset: int,
    columns: Mapping[EventFormat, str],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    by_format = {event._replace(id=0): name for event, name in columns.items()}
    for process in found.processes:
        if process.pid in recorded.calls:
            shown = of_patterns(process, recorded.calls[process.pid], selection.traces)
            yield from _calls(process, shown.events, offset)
            if shown.lost:
                yield {"kind": "lost", "pid": process.pid, "lost": shown.lost}
        for stack in stacks([process], rate, selection):
            function, module = _split(stack.frames[-1])
            where = {"pid": process.pid, "function": function, "module": module}
            text = folded_stack(_split(frame)[0] for frame in stack.frames)
            yield {"kind": "stack", "stack": text, "calls": stack.calls, "self_ns": stack.value, **where}
        if process.pid in recorded.events:
            yield from _events(process.pid, recorded.events[process.pid], offset, by_format)


def _calls(process: Process, events: Iterable[Any], offset: int) -> Iterator[dict[str, Any]]:
    words, inner, path = (
        CallWords(process.names),
        defaultdict[tuple[int, int], int](int),
        defaultdict[int, list[str]](list),
    )
    for call, begins in calls(events):
        frames = path[call.thread]
        if begins:
            frames[call.depth :] = [_split(words.name(call))[0]]
            continue
        inside = inner.pop((call.thread, call.depth + 1), 0)
        function, module = _split(words.name(call))
        row = {
            "kind": "call", "pid": process.pid, "tid": call.thread, "time_ns": call.entry.time + offset,
            "function": function, "module": module, "depth": call.depth,
            "stack": folded_stack([*frames[: call.depth], function]),
        }  # fmt: skip
        if call.leave is not None:
            inner[call.thread, call.depth] += call.duration
            row |= {"duration_ns": call.duration, "self_ns": call.duration - inside, "ax": call.leave.value}
            row["result"] = words.result(call)[0] or None
        yield row


def _split(name: str) -> tuple[str, str | None]:
    """Function and module of `function [module]`."""
    function, _, module = name.partition(" [")
    return function, module.removesuffix("]") or None


def _events(
    pid: int, events: RecordedEvents, offset: int, columns: Mapping[EventFormat, str]
) -> Iterator[dict[str, Any]]:
    of_name = {event.name: columns.get(event._replace(id=0)) for event in events.formats.values()}
    for each in objects(events):
        time = each["time_ns"] + offset
        common = {"pid": pid, "tid": each["tid"], "comm": each["comm"], "time_ns": time}
        if each["lost"]:
            yield {"kind": "lost", "lost": each["lost"] if each["lost"] > 0 else None, **common}
        column = of_name.get(each["event"])
        fields = {column: each["fields"]} if column else {"fields": json.dumps(each["fields"])}
        yield {"kind": "event", "event": each["event"], **common, **fields}
