"""The report of a run as text, and its writing in any format when the program has ended."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fprobe.report.tables import hist_lines, stat_lines
from fprobe.run.launcher import values
from fprobe.run.launcher.flame import flame_of, folded_lines, speedscope_text
from fprobe.run.launcher.launching import Program
from fprobe.run.launcher.process import Process, has_total, total_of
from fprobe.run.launcher.remarks import conclusion, shown_command, troubles
from fprobe.run.launcher.report_selection import Recorded, ReportSelection, of_patterns, stat_rows
from fprobe.run.launcher.results import FAILED, Results, read
from fprobe.run.launcher.stack_tables import stack_lines
from sandbox.process import terminal
from sandbox.process.printable import printable_line
from sandbox.process.writing import as_bytes, write_all
from sandbox.x86_64.tsc import Ticks

if TYPE_CHECKING:
    from fprobe.run.launcher.call_events import CallEvents
    from fprobe.run.launcher.native_maps import Contents
    from fprobe.run.launcher.probe_events import RecordedEvents
    from fprobe.run.launcher.run_rows import RunRows


_STANDARD_ERROR = 2
WITHOUT_WORDS = ("folded", "flame", "speedscope", "perfetto", "csv", "ndjson")
"""Formats that cannot say why they are empty."""


def text(
    results: Results, rate: float, selection: ReportSelection, recorded: Recorded, width: int | None = None
) -> Iterator[str]:
    """The report's lines. `rate`: ticks per nanosecond; `width`: columns of the terminal on which tables are shown."""
    shown = [process for process in results.processes if process.has_anything or process.pid in recorded.events]
    for process in shown:
        yield from _process(process, rate, selection, width, results.told)
        yield from stack_lines(process, rate, selection)
        if process.pid in recorded.calls:
            calls = of_patterns(process, recorded.calls[process.pid], selection.traces)
            from fprobe.run.launcher.call_events import tree_lines  # most reports do not need types of arguments

            yield from tree_lines(calls, process.names)
        if process.pid in recorded.events:
            yield from recorded.events[process.pid].lines()
        if selection.values is not None and process.pid in recorded.values:
            yield from values.lines(recorded.values[process.pid], selection.values, selection.order, width)
    yield from _total(results, rate, selection, width)
    if selection.values is not None and (total := values.total_over(recorded.values, selection.values)) is not None:
        yield f"# total of {len(recorded.values):,} processes"
        yield from values.lines(total, selection.values, selection.order, width)
    yield from _maps(recorded.maps)
    yield from conclusion(results, is_empty=not has_counted(results, recorded))


def _total(results: Results, rate: float, selection: ReportSelection, width: int | None) -> Iterator[str]:
    """The table and the histograms of the calls of all processes, if there are several."""
    calling = [process for process in results.processes if process.calls]
    if len(calling) > 1 and (selection.stats or selection.hists) and has_total(selection.by):
        yield f"# total of {len(calling):,} processes"
        yield from _counted(total_of(calling, selection.by), rate, selection, width)


def _counted(process: Process, rate: float, selection: ReportSelection, width: int | None) -> Iterator[str]:
    """The table, and the histograms of durations."""
    shown, left_out = stat_rows(process, rate, selection, selection.stats)
    if shown or left_out:
        yield from stat_lines(shown, selection.by, width=width, sort=selection.order.sort)
    if left_out:
        yield f"# {selection.order.left_out(left_out)}"
    yield from hist_lines(stat_rows(process, rate, selection, selection.hists)[0], width)


def has_counted(results: Results, recorded: Recorded) -> bool:
    """Whether there is anything to show. Native handlers decide themselves what they count."""
    is_handled = any(process.maps and process.attached for process in results.processes)
    return (
        is_handled
        or any(process.calls or process.stacks for process in results.processes)
        or any(events.has_records for events in recorded.events.values())
        or any(table.rows for table in recorded.values.values())
    )


def _maps(maps: Mapping[int, Contents]) -> Iterator[str]:
    for pid, contents in maps.items():
        if len(maps) > 1:
            yield f"# process {pid}"
        yield from contents.lines()


def _process(
    process: Process, rate: float, selection: ReportSelection, width: int | None, told: frozenset[str]
) -> Iterator[str]:
    origin = f" (forked by {process.parent})" if process.parent else ""
    yield f"# process {process.pid}{origin}: {shown_command(process.command)}"
    yield from troubles(process, told)
    if process.dropped:
        what = "functions" if selection.by == "function" else f"functions by {selection.by}"
        yield f"# {process.dropped:,} calls are not in this table: a thread has place for 2,048 different {what}"
    yield from _counted(process, rate, selection, width)


def report_after(
    program: Program, counts: int, journal: int, selection: ReportSelection, output: int, format_: str, path: str | None
) -> int:
    """Wait for the program, and write the report to the descriptor `output`, of the file `path` if it is one.

    Returns an exit status, as from waitpid. It is the program's or, if that is 0, 1 if there is no report or nothing was probed.
    """
    ticks = Ticks()
    rows = rows_of(output, [(counts, journal, "")], format_)
    with rows.while_running() if rows is not None else contextlib.nullcontext():
        status = program.wait()
    try:
        found = read(counts, journal)
        found.status = status
        if rows is not None:
            finish_rows(rows, found, selection, ticks)
        else:
            write_report(output, found, recorded_of(found, counts, selection), selection, ticks, format_)
        return found.exit_status
    except OSError as error:
        _say(f"{f'{path}: ' if path else ''}the report could not be written: {error.strerror}")
    except Exception as error:  # the program's exit status is more important
        _say(f"the report could not be made: {type(error).__name__}: {error}")
    return status or FAILED


def rows_of(output: int, programs: Iterable[tuple[int, int, str]], format_: str) -> RunRows | None:
    """What writes a report while the programs run; None for a format that is written when they have ended.

    `programs`: of each the file of counts, the journal, and the directory that its paths are in.
    """
    if format_ != "parquet":
        return None
    from fprobe.run.launcher.run_rows import Memory, RunRows

    return RunRows(output, [Memory(*each) for each in programs])


def finish_rows(rows: RunRows, found: Results, selection: ReportSelection, ticks: Ticks) -> None:
    """Write the rest, and say on standard error what a file of rows does not. Raises OSError."""
    rows.finish(found, selection, ticks.per_nanosecond())
    lost = [f"# {rows.lost:,} entries, returns and records were overwritten before they could be written"]
    _say_all([*_words(found, is_empty=not rows.rows), *(lost if rows.lost else ())])


def status_after(program: Program, counts: int, journal: int) -> int:
    """Wait for a program whose calls nobody wanted. Returns its exit status, as from waitpid; errors of ours are said."""
    status = program.wait()
    with contextlib.suppress(OSError):
        for process in read(counts, journal).processes:
            _say_all(f"fprobe: {error}" for error in process.errors)
    return status


def write_report(
    output: int, found: Results, recorded: Recorded, selection: ReportSelection, ticks: Ticks, format_: str
) -> None:
    """Write the report; its words to standard error if the format has none. Raises OSError."""
    content = rendered(found, selection, recorded, ticks, format_, terminal.width(output))
    write_all(output, _for_a_terminal(content) if os.isatty(output) else content)
    if format_ in WITHOUT_WORDS:
        is_empty = not has_counted(found, recorded)
        if is_empty or output != _STANDARD_ERROR:
            _say_all(_words(found, is_empty))
    if format_ != "text" or output != _STANDARD_ERROR:
        _say_all(_lost(recorded))


def _for_a_terminal(content: bytes) -> bytes:
    """A report without what the program's bytes would do to a terminal: CSV has them as they are."""
    return as_bytes(printable_line(content.decode("utf-8", "surrogateescape")))


def _lost(recorded: Recorded) -> Iterator[str]:
    """What is missing in a file of calls or records."""
    for what, found in ("entries and returns", recorded.calls), ("records of events", recorded.events):
        if lost := sum(each.lost for each in found.values()):
            yield f"# {lost:,} older {what} were overwritten; -o FILE.parquet is written while the program runs, and keeps more"


def _words(found: Results, is_empty: bool) -> Iterator[str]:
    """What a report as text says besides what was counted."""
    for process in found.processes:
        yield from troubles(process, found.told)
    yield from conclusion(found, is_empty=is_empty)


def _say(sentence: str) -> None:
    _say_all([f"fprobe: {sentence}"])


def _say_all(lines: Iterable[str]) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        write_all(_STANDARD_ERROR, _text_of(lines))


def rendered(
    found: Results, selection: ReportSelection, recorded: Recorded, ticks: Ticks, format_: str, width: int | None = None
) -> bytes:
    """The report in one of the formats. `width`: see `text`."""
    rate = ticks.per_nanosecond()
    if format_ == "folded":
        return _text_of(folded_lines(found.processes, rate, selection))
    if format_ == "flame":
        return as_bytes(flame_of(found.processes, rate, _title(found), selection))
    if format_ == "perfetto":
        return _perfetto(found, selection, recorded)
    if format_ == "speedscope":
        return as_bytes(f"{speedscope_text(found.processes, rate, _title(found), selection)}\n")
    if format_ in ("json", "ndjson", "csv"):
        from fprobe.run.launcher.document import document

        made = document(found, rate, selection, recorded, is_empty=not has_counted(found, recorded))
        return as_bytes("".join(f"{line}\n" for line in _lines_of(made, format_)))
    return _text_of(text(found, rate, selection, recorded, width))


def _perfetto(found: Results, selection: ReportSelection, recorded: Recorded) -> bytes:
    from fprobe.run.launcher.call_events import RecordedProcess, perfetto_trace

    processes = [
        RecordedProcess(
            each.pid, each.command, each.names, of_patterns(each, recorded.calls[each.pid], selection.traces)
        )
        for each in found.processes
    ]
    return perfetto_trace(processes)


def _lines_of(made: dict[str, Any], format_: str) -> Iterator[str]:
    """A report as JSON: the whole, or an object or a row of CSV for each of its rows."""
    from fprobe.report.rows import csv_lines, json_text
    from fprobe.run.launcher.document import rows

    if format_ == "json":
        yield json_text(made, indent=2)
    elif format_ == "ndjson":
        yield from map(json_text, rows(made))
    else:
        yield from csv_lines(lambda: rows(made))


def recorded_of(found: Results, counts: int, selection: ReportSelection) -> Recorded:
    """Everything besides counts that is wanted, from the file of counts."""
    of_values = values.tables(found.processes, counts, selection.values) if selection.values is not None else {}
    maps = _native_maps(found, counts, selection)
    return Recorded(_calls(found, counts, selection), _probe_events(found, counts, selection), maps, of_values)


def _calls(found: Results, counts: int, selection: ReportSelection) -> Mapping[int, CallEvents]:
    if not selection.traces or selection.native:
        return {}
    from fprobe.run.launcher.call_records import read_events

    return {each.pid: read_events(counts, each.parts, each.own_threads) for each in found.processes}


def _probe_events(found: Results, counts: int, selection: ReportSelection) -> Mapping[int, RecordedEvents]:
    if not selection.events:
        return {}
    from fprobe.run.launcher.probe_events import read_records

    return read_records(counts, found.processes)


def _native_maps(found: Results, counts: int, selection: ReportSelection) -> Mapping[int, Contents]:
    if not selection.native:
        return {}
    from fprobe.run.launcher.native_maps import read_maps

    try:
        return read_maps(selection.native, found.processes, counts)
    except Exception as error:  # of the user's file, which is executed again
        _say(f"the maps of native handlers could not be read: {error}")
        return {}


def _title(found: Results) -> str:
    return " ".join(found.processes[0].command[1:]) if found.processes else "nothing was recorded"


def _text_of(lines: Iterable[str]) -> bytes:
    return as_bytes("".join(f"{printable_line(line)}\n" for line in lines))
