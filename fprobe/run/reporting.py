"""Waiting for the program, and writing the report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from fprobe.run import report, results
from fprobe.run.launching import Program
from fprobe.run.report import Wanted
from fprobe.run.ticks import Ticks

__all__ = ["Wanted", "after"]


def after(program: Program, counts: int, journal: int, wanted: Wanted, output: str | None, as_json: bool) -> int:
    """Wait for the program, write the report to `output` or standard error, and return the program's status."""
    ticks = Ticks()
    status = program.wait()
    found = results.read(counts, journal)
    rate = ticks.per_nanosecond()
    if as_json:
        _write([json.dumps(report.document(found, rate, wanted.by), indent=2)], output)
    else:
        _write(report.text(found, rate, wanted), output)
    return status


def _write(lines: Iterable[str], output: str | None) -> None:
    data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
    try:
        if output is not None:
            Path(output).write_bytes(data)
        else:
            _write_all(2, data)
    except OSError as error:
        _write_all(2, f"fprobe: {output or 'standard error'}: {error.strerror}\n".encode())


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
