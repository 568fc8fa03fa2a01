"""The report of a run as text, and its writing in any format when the program has ended."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from fprobe.run.call_events import RecordedProcess, perfetto_trace, read_events, tree_lines
from fprobe.run.document import document
from fprobe.run.durations import Ticks, bars, duration
from fprobe.run.flame import flame_page, folded_lines, stacks
from fprobe.run.launching import Program
from fprobe.run.results import Calls, Process, Results, group_heading, read
from fprobe.run.session import PARTS
from fprobe.run.wanted import Recorded, Wanted, of_patterns, rows

if TYPE_CHECKING:
    from fprobe.run.native_maps import Contents
    from fprobe.run.probe_events import RecordedEvents


_STACKS = 10
"""Stacks shown as text."""
_LONGEST = 160
"""Characters of a command that are shown."""
_LISTED = 5
"""Functions listed as not probed; the others are only counted."""


def text(results: Results, rate: float, wanted: Wanted, recorded: Recorded) -> Iterator[str]:
    """The report's lines. `rate`: ticks per nanosecond."""
    shown = [process for process in results.processes if process.has_anything or process.pid in recorded.events]
    for process in shown:
        yield from _process(process, rate, wanted)
        yield from _stacks(process, rate)
        if process.pid in recorded.calls:
            calls = of_patterns(process, recorded.calls[process.pid], wanted.traces)
            yield from tree_lines(calls, process.names, rate)
        if process.pid in recorded.events:
            yield from recorded.events[process.pid].lines()
    counted = any(process.calls or process.stack_counts or process.maps for process in results.processes)
    if not (recorded.events or counted):
        yield f"fprobe: {_why_nothing(results)}"
    yield from _remarks(results)
    yield from _maps(recorded.maps)


def _maps(maps: Mapping[int, Contents]) -> Iterator[str]:
    for pid, contents in maps.items():
        if len(maps) > 1:
            yield f"# process {pid}"
        yield from contents.lines()


def _stacks(process: Process, rate: float) -> Iterator[str]:
    """The stacks that took the most time, innermost frame first."""
    found = sorted(stacks([process], rate), key=lambda stack: -stack.nanoseconds)
    for stack in found[:_STACKS]:
        yield f"{duration(stack.nanoseconds):>10} {stack.calls:10,} calls  {stack.frames[-1]}"
        yield from (f"{'':29}<- {frame}" for frame in reversed(stack.frames[:-1]))
    if len(found) > _STACKS:
        yield f"# {len(found) - _STACKS:,} more stacks; --format folded has every one"


def _why_nothing(results: Results) -> str:
    if not results.processes:
        return (
            "nothing was counted: the program did not start as a Python that can import fprobe (python -I, -E or -S?)"
        )
    if not any(process.attached for process in results.processes):
        reasons = dict(reason for process in results.processes for reason in process.waiting.items())
        return f"nothing was counted: {'; '.join(reasons.values()) or 'nothing matches'}"
    return f"nothing was counted: no probed function was called{_probed(results)}"


def _probed(results: Results) -> str:
    """How many functions of which images have probes, in parentheses."""
    of_images: dict[str, set[str]] = {}
    for process in results.processes:
        for address in set[int]().union(*process.matched.values()):
            named = process.names.function(address)
            of_images.setdefault(named.library, set()).add(named.name)
    if not of_images:
        return ""
    counts = (
        f"{len(names):,} function{'s' * (len(names) != 1)} of {image}" for image, names in sorted(of_images.items())
    )
    return f" (probed: {', '.join(counts)}; a copy that is linked into Python or another library goes by its name)"


def _process(process: Process, rate: float, wanted: Wanted) -> Iterator[str]:
    origin = f" (forked by {process.parent})" if process.parent else ""
    yield f"# process {process.pid}{origin}: {_command(process.command)}"
    yield from (f"# {text}" for text in (*process.errors, *process.remarks))
    yield from _skipped(process.skipped)
    if process.dropped:
        yield f"# {process.dropped:,} calls are not in this table: a thread called too many functions"
    calls = rows(process, wanted.by, wanted.stats)
    if calls:
        yield from table(process, calls, rate, wanted.by)
    if wanted.hists:
        for each in rows(process, "function", wanted.hists):
            yield f"{process.names.function(each.ip)}: {each.returns:,} calls, {duration(each.total / rate)}"
            yield from bars(each.buckets, rate)


def table(process: Process, calls: Sequence[Calls], rate: float, by: str) -> Iterator[str]:
    """A line for each function, or for each function and caller or thread."""
    heads = ("TOTAL", "AVERAGE", "MIN", "P50", "P99", "MAX")
    yield f"{' '.join(f'{head:>10}' for head in heads)} {'HITS':>10}  FUNCTION{group_heading(by)}"
    for each in calls:
        times = (
            each.total,
            each.average,
            each.least,
            each.percentile(0.5),
            each.percentile(0.99),
            each.most,
        )
        columns = " ".join(f"{duration(time / rate):>10}" for time in times)
        yield f"{columns} {each.hits:10,}  {process.names.function(each.ip)}{process.group(each, by)}"
        if each.missed:
            yield f"{'':88}{each.missed:,} of these calls were not timed"


def _skipped(skipped: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"# not probed: {name}: {reason}" for name, reason in skipped[:_LISTED])
    if len(skipped) > _LISTED:
        yield f"# not probed: {len(skipped) - _LISTED:,} more functions; --json lists them"


def _remarks(results: Results) -> Iterator[str]:
    for pid, command in results.not_covered.items():
        yield f"# not covered: process {pid}: {_command(command)}"
    if results.uncounted:
        yield f"# not covered: {results.uncounted:,} more processes; one run counts at most {PARTS}"


def _command(words: Sequence[str]) -> str:
    """A command line without the program's directory, on one line and truncated."""
    line = shlex.join([word.rpartition("/")[2] for word in words[:1]] + list(words[1:])).replace("\n", "\\n")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def report_after(program: Program, counts: int, journal: int, wanted: Wanted, output: int, format_: str) -> int:
    """Wait for the program, write the report to the descriptor `output`, and return the program's exit status."""
    ticks = Ticks()
    status = program.wait()
    found = read(counts, journal)
    try:
        _write(output, _report(found, counts, wanted, ticks, format_))
    except ModuleNotFoundError as error:
        _report_failure(f"--format {format_} needs the package {error.name}: pip install 'fprobe[targets]'")
    except OSError as error:
        _report_failure(f"the report could not be written: {error.strerror}")
    return status


def _report_failure(sentence: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        _write(2, f"fprobe: {sentence}\n".encode())


def _report(found: Results, counts: int, wanted: Wanted, ticks: Ticks, format_: str) -> bytes:
    rate = ticks.per_nanosecond()
    if format_ == "folded":
        return _text_of(folded_lines(found.processes, rate))
    if format_ == "flame":
        return flame_page(stacks(found.processes, rate), _title(found)).encode()
    recorded = _recorded(found, counts, wanted)
    if format_ == "perfetto":
        processes = [
            RecordedProcess(each.pid, each.command, each.names, recorded.calls[each.pid]) for each in found.processes
        ]
        return perfetto_trace(processes, ticks.first, rate)
    if format_ == "json":
        return _text_of([json.dumps(document(found, rate, wanted, recorded), indent=2)])
    return _text_of(text(found, rate, wanted, recorded))


def _recorded(found: Results, counts: int, wanted: Wanted) -> Recorded:
    is_recorded = bool(wanted.traces) and not wanted.native
    calls = {each.pid: read_events(counts, each.parts) for each in found.processes} if is_recorded else {}
    return Recorded(calls, _probe_events(found, counts, wanted), _native_maps(found, counts, wanted))


def _probe_events(found: Results, counts: int, wanted: Wanted) -> Mapping[int, RecordedEvents]:
    if not wanted.events:
        return {}
    from fprobe.run.probe_events import read_records

    return read_records(counts, found.processes)


def _native_maps(found: Results, counts: int, wanted: Wanted) -> Mapping[int, Contents]:
    if not wanted.native:
        return {}
    from fprobe.run.native_maps import read_maps

    return read_maps(wanted.native, found.processes, counts)


def _title(found: Results) -> str:
    return " ".join(found.processes[0].command[1:]) if found.processes else "nothing was recorded"


def _text_of(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
