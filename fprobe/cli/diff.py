"""`fprobe diff`: what has changed between two reports or recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure, of_system
from fprobe.cli.options import file_options, output_options

if TYPE_CHECKING:
    from fprobe.report.difference import Change, Run

_EPILOG = """\b
Examples:
  fprobe run --stat 'libz:*' --json -o a.json app.py
  fprobe diff a.json b.json
  fprobe diff a.json b.json --value hits --sort relative --top 10
  fprobe diff runs-before runs-after
  fprobe diff a.json b.json -o changes.csv
  fprobe diff --by stack a.folded b.folded -o diff.svg

A and B are files, or directories with several runs each: then medians are compared, and P is that of a rank test (Mann-Whitney).
"""
_SORT_KEYS = ("change", "relative", "before", "after", "name")
_VALUES = ("self", "total", "average", "hits")
"""As in `fprobe.report.difference`."""


@click.command("diff", epilog=_EPILOG, short_help="Compare two reports or recordings.")
@click.argument("before", metavar="A", shell_complete=candidates.files)
@click.argument("after", metavar="B", shell_complete=candidates.files)
@click.option("--by", type=click.Choice(["function", "stack"]), default="function", show_default=True)
@click.option(
    "--value", type=click.Choice(_VALUES), help="What to compare; default: self, or total if that is not there."
)
@click.option("--sort", "-s", type=click.Choice(_SORT_KEYS), default="change", show_default=True, help="Order of rows.")
@click.option("--top", "most", metavar="N", type=click.IntRange(1), help="Only the first N rows.")
@output_options
@file_options("text", "json", "ndjson", "csv", "svg")
def diff_command(
    before: str,
    after: str,
    by: str,
    value: str | None,
    sort: str,
    most: int | None,
    console: Console,
) -> None:
    """Compare A with B: JSON of `fprobe run` or `fprobe stat`, folded stacks, or a trace.dat.

    With --json: one object with value, before and after (the files), rows and left_out.
    """
    from fprobe.report import difference

    sides = _runs(before), _runs(after)
    if console.beside is not None:
        _write_graph(console.beside, sides, f"{before} - {after}")
    key = value or _default(sides, by)
    rows = _sorted(difference.changes(*([_values(run, by, key) for run in side] for side in sides)), sort)
    shown = rows[:most]
    for line in difference.lines(shown, key, by.upper(), console, console.width):
        console.line(line)
    if left := len(rows) - len(shown):
        console.note(f"# {left:,} more, after the first {most:,} (--top)")
    files = {name: [run.source for run in side] for name, side in zip(("before", "after"), sides, strict=True)}
    objects = difference.objects(shown)
    console.document({"value": key, **files, "rows": objects, "left_out": left}, objects)


def _runs(path: str) -> list[Run]:
    from fprobe.export.runs import runs_of

    try:
        return runs_of(path)
    except OSError as error:
        raise Failure(of_system(error)) from None
    except ValueError as error:
        raise Failure(str(error)) from None


def _default(sides: tuple[list[Run], list[Run]], by: str) -> str:
    found = [each for side in sides for run in side for each in run.functions.values()]
    return "self" if by == "stack" or all(each.self is not None for each in found) else "total"


def _values(run: Run, by: str, key: str) -> dict[str, float | None]:
    """What is compared, by name. Raises Failure if the run does not have it."""
    if by == "stack":
        if key != "self":
            raise Failure(f"stacks have the time of their innermost functions, not {key}: leave out --value {key}")
        _check_stacks(run)
        return {";".join(frames): value for frames, value in run.stacks.items()}
    found = {name: each.value(key) for name, each in run.functions.items()}
    if None in found.values() or (
        key != "self" and run.functions and not any(each.hits for each in run.functions.values())
    ):
        raise Failure(f"{run.source} has no {key}; give another --value")
    return found


def _check_stacks(run: Run) -> None:
    if not run.stacks:
        raise Failure(f"{run.source} has no stacks; they come from fprobe run --stacks, or from a recording")


def _sorted(rows: list[Change], sort: str) -> list[Change]:
    """The rows, which have the largest change first."""
    if sort == "name":
        return sorted(rows, key=lambda row: row.name)
    return rows if sort == "change" else sorted(rows, key=lambda row: -abs(getattr(row, sort)))


def _write_graph(output: str, sides: tuple[list[Run], list[Run]], title: str) -> None:
    from fprobe.report.difference import mean_stacks
    from fprobe.report.difference_graph import svg

    for side in sides:
        for run in side:
            _check_stacks(run)
    try:
        with open(output, "w", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # its errors name the file
            file.write(svg(mean_stacks(sides[0]), mean_stacks(sides[1]), title))
    except OSError as error:
        raise Failure(of_system(error), 1) from None
