"""`fprobe run --stacks libc:malloc --sum` beside `memray run --native`: what an allocation costs more, 5 and 50 calls deep."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Row, Sample

_DEPTHS = (5, 50)
_ROUNDS = 5
"""Each sample has processes of its own."""
_LEAST = 2_000
_PROGRAM = """
import sys, time
calls, depth = map(int, sys.argv[1:3])
def work(count):
    make = bytearray
    for _ in range(count):
        make(5000)
def deeper(more, count):
    if more:
        return deeper(more - 1, count)
    work(count)
deeper(depth - 2, 1000)
begun = time.process_time_ns()
deeper(depth - 2, calls)
with open(sys.argv[3], "w") as file:
    file.write(str((time.process_time_ns() - begun) / calls))
"""
"""Allocates, and frees. CPU time: the machine may be busy."""


def _nanoseconds(directory: str, command: list[str], calls: int, depth: int) -> float:
    program, result = Path(directory, "program.py"), Path(directory, "result")
    program.write_text(_PROGRAM)
    subprocess.run([sys.executable, *command, program, str(calls), str(depth), result], check=True)
    return float(result.read_text())


def _sample(tracer: str, calls: int, depth: int) -> Sample:
    """Raises AssertionError if fprobe has not counted all allocations."""
    calls = max(calls, _LEAST)
    with TemporaryDirectory() as directory:
        plain = _nanoseconds(directory, [], calls, depth)
        report = Path(directory, "report.json")
        options = {
            "fprobe": ["-m", "fprobe.cli", "run", "--stacks", "libc:malloc", "--sum", "arg1", "-o", str(report)],
            "memray": ["-m", "memray", "run", "--native", "-q", "-o", str(Path(directory, "memray.bin"))],
        }
        traced = _nanoseconds(directory, options[tracer], calls, depth)
        if tracer == "fprobe":
            rows = [row for process in json.loads(report.read_text())["processes"] for row in process["lines"]]
            found = sum(row["hits"] for row in rows if row["python"] == "work")
            assert found == calls + 1000, f"{found} allocations of {calls + 1000}"
    return Sample(plain, traced, calls, calls)


def _no_memray() -> str:
    """Why memray cannot be run; '' if it can."""
    return "" if importlib.util.find_spec("memray") else "the package memray is not installed: pip install memray"


def rows(calls: int) -> list[Row]:
    """The rows of both, which take turns."""
    about = {
        "fprobe": "`run --stacks libc:malloc --sum`, an allocation {} functions deep",
        "memray": "`memray run --native`, the same allocation, and its end",
    }
    absent = {"fprobe": str, "memray": _no_memray}
    return [
        Row(
            f"allocation.{tracer}.{depth}",
            about[tracer].format(depth),
            partial(_sample, tracer, calls, depth),
            _ROUNDS,
            absent[tracer],
        )
        for depth in _DEPTHS
        for tracer in about
    ]
