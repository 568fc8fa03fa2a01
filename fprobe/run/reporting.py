"""Waits for the program and writes the report."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fprobe.run import events, flame, folded, perfetto, report, results
from fprobe.run.launching import Program
from fprobe.run.report import Wanted
from fprobe.run.results import Results
from fprobe.run.ticks import Ticks

if TYPE_CHECKING:
    from fprobe.run.recorded import RecordedEvents

__all__ = ["Wanted", "after"]


def after(program: Program, counts: int, journal: int, wanted: Wanted, output: int, format_: str) -> int:
    """Wait for the program, write the report to the descriptor `output`, and return the program's exit status."""
    ticks = Ticks()
    status = program.wait()
    found = results.read(counts, journal)
    try:
        _write(output, _made(found, counts, wanted, ticks, format_))
    except ModuleNotFoundError as error:
        _say(f"--format {format_} needs the package {error.name}: pip install 'fprobe[targets]'")
    except OSError as error:
        _say(f"the report could not be written: {error.strerror}")
    return status


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        _write(2, f"fprobe: {sentence}\n".encode())


def _made(found: Results, counts: int, wanted: Wanted, ticks: Ticks, format_: str) -> bytes:
    rate = ticks.per_nanosecond()
    is_recorded = bool(wanted.traces) and not wanted.native
    call_events = {each.pid: events.read(counts, each.parts) for each in found.processes} if is_recorded else {}
    if format_ == "perfetto":
        recorded = [
            perfetto.Recorded(each.pid, each.command, each.names, call_events[each.pid]) for each in found.processes
        ]
        return perfetto.trace(recorded, ticks.first, rate)
    if format_ == "folded":
        return _joined(folded.lines(found.processes, rate))
    if format_ == "flame":
        return flame.page(folded.stacks(found.processes, rate), _title(found)).encode()
    probe_events = _probe_events(found, counts, wanted)
    if format_ == "json":
        return _joined([json.dumps(report.document(found, rate, wanted, call_events, probe_events), indent=2)])
    return _joined([*report.text(found, rate, wanted, call_events, probe_events), *_maps(found, counts, wanted.native)])


def _probe_events(found: Results, counts: int, wanted: Wanted) -> dict[int, RecordedEvents]:
    if not wanted.events:
        return {}
    from fprobe.run.recorded import read

    return read(counts, found.processes)


def _maps(found: Results, counts: int, native: str) -> Iterator[str]:
    if not native:
        return
    from fprobe.run.native_maps import shown

    with_maps = [process for process in found.processes if process.maps]
    for process in with_maps:
        if len(with_maps) > 1:
            yield f"# process {process.pid}"
        yield from shown(native, process, counts)


def _title(found: Results) -> str:
    return " ".join(found.processes[0].command[1:]) if found.processes else "nothing was recorded"


def _joined(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
