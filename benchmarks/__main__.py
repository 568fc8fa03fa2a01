"""`python -m benchmarks`: choose rows, measure, print."""

from __future__ import annotations

import argparse
import atexit
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks import (
    allocations,
    attaching,
    breakpoints,
    columns,
    compared,
    compiling,
    events,
    libraries,
    machine,
    mounted,
    numba_calls,
    peers,
    probes,
    processes,
    reading,
    reference,
    report,
    scale,
    situations,
    starting,
    sustained,
    tracers,
)
from benchmarks.measure import Row, measure, summarise
from benchmarks.processes import Samples


def all_rows(calls: int, functions: int) -> tuple[list[Row], list[Row]]:
    """Every row: those to be measured before the large program is loaded, which `*` would cover, and the others.

    `calls`: of a sample; `functions`: of the large program.
    """
    before = scale.rows(max(functions // 50, 1))
    return before, [
        *reference.rows(calls),
        *probes.rows(calls),
        *numba_calls.rows(calls),
        *situations.rows(calls),
        *events.rows(calls),
        *tracers.rows(calls),
        *sustained.rows(calls),
        *compared.rows(calls),
        *breakpoints.rows(calls, functions),
        *libraries.rows(calls, functions),
        *peers.rows(calls),
        *allocations.rows(calls),
        *compiling.rows(),
        *starting.rows(),
        *attaching.rows(calls),
        *mounted.rows(),
        *reading.rows(),
        *columns.rows(calls),
        *scale.large_rows(functions, calls),
    ]


def choose(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows called `names`, which may be globs, or all of them."""
    return [row for row in rows if not names or any(fnmatchcase(row.name, name) for name in names)]


def unknown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A sentence about the names that are no rows; empty if there are none."""
    known = [row.name for row in rows]
    strange = [repr(name) for name in names if not any(fnmatchcase(row, name) for row in known)]
    return f"no row {', '.join(strange)}; there are: {', '.join(known)}" if strange else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What probes cost.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure, such as attach.* (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--calls", type=int, default=300_000, help="calls in a sample (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=12, help="samples of each row in a process (default: %(default)s)"
    )
    parser.add_argument(
        "--processes", type=int, default=5, help="processes, one after the other (default: %(default)s)"
    )
    parser.add_argument("--functions", type=int, default=50_000, help="functions of the large program")
    parser.add_argument("--samples", action="store_true", help=argparse.SUPPRESS)
    return parser


def _complaint(options: argparse.Namespace, rows: Sequence[Row]) -> str:
    """What is wrong with the options; empty if nothing is."""
    for option in ("calls", "rounds", "processes", "functions"):
        if getattr(options, option) < 1:
            return f"--{option} must be at least 1, not {getattr(options, option)}"
    return unknown(rows, options.rows)


def _here(groups: Sequence[Sequence[Row]], rounds: int) -> Samples:
    """The samples of the rows, taken in this process, one group after the other."""
    return {name: taken for group in groups for name, taken in measure(group, rounds).items()}


def _elsewhere(options: argparse.Namespace, names: Sequence[str]) -> Samples:
    """The samples of the rows of these names, taken in several processes of their own."""
    if not names:
        return {}
    sizes = (f"--{option}={getattr(options, option)}" for option in ("calls", "rounds", "functions"))
    return processes.gather([*sizes, *names], options.processes)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = _parser().parse_args(arguments)
    groups = all_rows(options.calls, options.functions)
    rows = choose([row for group in groups for row in group], options.rows)
    if complaint := _complaint(options, [row for group in groups for row in group]):
        _parser().error(complaint)
    if options.samples:
        atexit.register(Path(f"/tmp/perf-{os.getpid()}.map").unlink, missing_ok=True)
        print("\n".join(processes.lines(_here([choose(group, options.rows) for group in groups], options.rounds))))
        return 0
    absent = {row.name: why for row in rows if (why := row.absent())}
    try:
        samples = _elsewhere(options, [row.name for row in rows if row.name not in absent])
    except processes.ChildError as error:
        print(error, file=sys.stderr)
        return 1
    results = [summarise(row.name, samples[row.name]) for row in rows if row.name not in absent]
    lines = (
        report.json_lines(results, absent) if options.json else report.page(machine.describe(), rows, results, absent)
    )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
