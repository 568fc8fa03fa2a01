"""Waiting for the program, and writing the report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fprobe.run import events, flame, folded, perfetto, report, results
from fprobe.run.launching import Program
from fprobe.run.report import Wanted
from fprobe.run.results import Results
from fprobe.run.ticks import Ticks

__all__ = ["Wanted", "after"]


def after(program: Program, counts: int, journal: int, wanted: Wanted, output: str | None, format_: str) -> int:
    """Wait for the program, write the report to `output` or standard error, and return the program's status."""
    ticks = Ticks()
    status = program.wait()
    found = results.read(counts, journal)
    try:
        _write(_made(found, counts, wanted, ticks, format_), output)
    except ModuleNotFoundError as error:
        _write_all(
            2, f"fprobe: --format {format_} needs the package {error.name}: pip install 'fprobe[targets]'\n".encode()
        )
    except OSError as error:
        _write_all(2, f"fprobe: {output or 'standard error'}: {error.strerror}\n".encode())
    return status


def _made(found: Results, counts: int, wanted: Wanted, ticks: Ticks, format_: str) -> bytes:
    rate = ticks.per_nanosecond()
    kept = (
        {process.pid: events.read(counts, process.parts) for process in found.processes}
        if wanted.traces and not wanted.native
        else {}
    )
    if format_ == "perfetto":
        recorded = [perfetto.Recorded(each.pid, each.command, each.names, kept[each.pid]) for each in found.processes]
        return perfetto.trace(recorded, ticks.first, rate)
    if format_ == "folded":
        return _joined(folded.lines(found.processes, rate))
    if format_ == "flame":
        return flame.page(folded.stacks(found.processes, rate), _title(found)).encode()
    if format_ == "json":
        return _joined([json.dumps(report.document(found, rate, wanted, kept), indent=2)])
    return _joined([*report.text(found, rate, wanted, kept), *_maps(found, counts, wanted.native)])


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


def _write(data: bytes, output: str | None) -> None:
    if output is not None:
        Path(output).write_bytes(data)
    else:
        _write_all(2, data)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
