"""`python -m benchmarks`: choose rows, measure, print."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks import machine, probes, reference, report, scale
from benchmarks.measure import Row, measure


def all_rows(calls: int, functions: int) -> tuple[list[Row], list[Row]]:
    """Every row: those to be measured before the large program is loaded, which `*` would cover, and the others.

    `calls`: of a sample; `functions`: of the large program.
    """
    before = scale.rows(max(functions // 50, 1))
    return before, [*reference.rows(calls), *probes.rows(calls), *scale.large_rows(functions, calls)]


def choose(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The rows called `names`, or all of them."""
    return [row for row in rows if not names or row.name in names]


def unknown(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A sentence about the names that are no rows; empty if there are none."""
    known = [row.name for row in rows]
    strange = [repr(name) for name in names if name not in known]
    return f"no row {', '.join(strange)}; there are: {', '.join(known)}" if strange else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What probes cost.")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--calls", type=int, default=300_000, help="calls in a sample (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=40, help="samples of each row (default: %(default)s)")
    parser.add_argument("--functions", type=int, default=50_000, help="functions of the large program")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    options = _parser().parse_args(arguments)
    for option in ("calls", "rounds", "functions"):
        if getattr(options, option) < 1:
            _parser().error(f"--{option} must be at least 1, not {getattr(options, option)}")
    before, others = all_rows(options.calls, options.functions)
    if complaint := unknown([*before, *others], options.rows):
        _parser().error(complaint)
    groups = [choose(group, options.rows) for group in (before, others)]
    results = [result for group in groups for result in measure(group, options.rounds)]
    if options.json:
        lines = report.json_lines(results)
    else:
        lines = (
            line
            for part in ([machine.describe(), ""], report.table([row for group in groups for row in group], results))
            for line in part
        )
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
