"""`fprobe stat`: hits, misses and times of each function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import CallingCommand, Target, call_option, call_words, output_options, program_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fprobe.actions import Stat
    from fprobe.cli.match import Match
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome

_EPILOG = """\b
Examples:
  fprobe stat
  fprobe stat 'vfs_*' 'do_*' --exclude do_mmap --sort hits
  fprobe stat '*' --program prog.c --call main --json

Counting is native: a hit costs nanoseconds. Times are from entry to return, including callees.
"""

_SORT_KEYS = ("total", "avg", "hits", "name")


class Row(NamedTuple):
    """The statistics of a function. `total_ns`: of the timed calls, of which there are `hits - missed`."""

    name: str
    hits: int
    missed: int
    total_ns: int
    min_ns: int = 0
    max_ns: int = 0

    @property
    def average_ns(self) -> float:
        """The average duration of a timed call; 0 if there is none."""
        timed = self.hits - self.missed
        return self.total_ns / timed if timed > 0 else 0.0


@click.command("stat", cls=CallingCommand, epilog=_EPILOG, short_help="Count and time calls.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", shell_complete=candidates.functions, help="Not these."
)
@click.option(
    "--sort", "-s", type=click.Choice(_SORT_KEYS), default="total", show_default=True, help="Order of the table."
)
@click.option(
    "--hist", "with_hist", is_flag=True, help="Show a histogram and percentiles of each function's durations."
)
@call_option
@program_options
@output_options
def stat_command(
    patterns: tuple[str, ...], exclude: tuple[str, ...], sort: str, with_hist: bool, target: Target, console: Console
) -> None:
    """Count and time the calls of the functions that match PATTERN (default: all).

    With --json: one object with program, call, result, matched, attached, skipped and functions.
    """
    from fprobe.actions import Stat
    from fprobe.cli import conclusion, durations, matching, program
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.probing import attached
    from fprobe.cli.running import run
    from fprobe.cli.summary import count

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    match = matching.match_or_fail(module, patterns or ("*",), exclude, target.notrace)
    stat = Stat(durations=with_hist)
    ctrl_c.hold()
    ctrl_c.check()
    with console.alone(), attached(match, action=stat) as probe:
        console.note(f"# counting {count(len(match.sites), 'function')} of [{module.name}], calling {call}")
        outcome = run(call)
        probe.disable()
        rows = ordered(rows_of(match, stat), sort)
        for line in table(rows, console):
            console.line(line)
        found = durations.by_name(match, stat) if with_hist else {}
        for line in durations.lines(found):
            console.line(line)
        conclusion.summarise(console, call, outcome, match, probe, _remarks(rows), as_objects=False)
        console.document(document(module.name, call, outcome, match, rows, durations.objects(found)))
        conclusion.conclude(outcome)


def rows_of(match: Match, stat: Stat) -> list[Row]:
    """A row for each function that was attached, called or not."""
    found = stat.functions()
    rows = []
    for site in match.sites:
        known = found.get(site.address)
        row = Row(site.symbol.name, 0, 0, 0)
        if known:
            times = (round(time) for time in (known.total_ns, known.min_ns, known.max_ns))
            row = Row(site.symbol.name, known.hits, known.missed, *times)
        rows.append(row)
    return rows


def ordered(rows: list[Row], key: str) -> list[Row]:
    """The rows by descending total time, average or hits, or by name."""
    if key == "name":
        return sorted(rows)
    field = {"total": "total_ns", "avg": "average_ns", "hits": "hits"}[key]
    return sorted(rows, key=lambda row: (-getattr(row, field), row.name))


def table(rows: list[Row], console: Console) -> Iterator[str]:
    """The functions that were called, as text."""
    from fprobe.export.durations import duration_text

    yield console.dim(
        f"{'TOTAL':>10}  {'AVERAGE':>10}  {'MIN':>10}  {'MAX':>10}  {'HITS':>10}  {'MISSED':>8}  FUNCTION"
    )
    for row in rows:
        if row.hits or row.missed:
            missed = f"{row.missed:8,}"
            times = "  ".join(map(duration_text, (row.total_ns, row.average_ns, row.min_ns, row.max_ns)))
            yield f"{times}  {row.hits:10,}  {console.bad(missed) if row.missed else missed}  {console.bold(row.name)}"


def _remarks(rows: list[Row]) -> list[str]:
    from fprobe.cli.summary import count

    idle = sum(not row.hits for row in rows)
    return [f"{count(idle, 'function')} never called"] if idle else []


def document(
    program: str, call: ProgramCall, outcome: Outcome, match: Match, rows: list[Row], more: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The output of --json; with an `error` if the program failed. `more`: further fields of functions, by name."""
    from fprobe.cli.conclusion import ending
    from fprobe.cli.failure import of_call

    found = {
        "program": program,
        "call": str(call),
        "result": outcome.result if outcome.returned else None,
        "matched": match.matched,
        "attached": len(match.sites),
        "skipped": [skipped._asdict() for skipped in match.skipped],
        "functions": [row._asdict() | more.get(row.name, {}) for row in rows],
    }
    found |= ending(outcome)
    return found | {"error": of_call(outcome.error).as_object()} if outcome.error else found
