"""`fprobe stat`: hits, misses and times of each function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import attach_and_report, refuse_with_pid
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.cli.options import (
    CallingCommand,
    ProgramTarget,
    call_option,
    call_words,
    file_options,
    output_options,
    program_options,
)
from fprobe.cli.ordering import table_options
from fprobe.cli.selecting import asked_of, by_number, by_option, question_of, where_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fprobe.cli.counted import Row
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.report.order import Order
    from fprobe.run.launcher.attached import Targets
    from fprobe.run.values import Values

_EPILOG = """\b
Examples:
  fprobe stat
  fprobe stat 'vfs_*' 'do_*' --exclude do_mmap --sort hits
  fprobe stat --sort self --top 10 --cpu
  fprobe stat '*' --program prog.c --call main --json
  fprobe stat vfs_read --by caller
  fprobe stat vfs_read --where 'count > 100' --by 'arg(count)'
  fprobe stat 'vfs_*' -o functions.csv
  fprobe stat -p 4711 'libz:*' --duration 10

Counting is native: a hit costs nanoseconds. TOTAL is the time from entry to return; SELF is without the calls inside that are
counted, too.
"""


@click.command("stat", cls=CallingCommand, epilog=_EPILOG, short_help="Count and time calls.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@click.option(
    "--exclude", "-x", multiple=True, metavar="PATTERN", shell_complete=candidates.functions, help="Not these."
)
@table_options
@click.option("--hist", "with_hist", is_flag=True, help="Show a histogram of each function's durations.")
@by_option
@where_option
@call_option
@program_options
@output_options
@file_options("text", "json", "ndjson", "csv")
def stat_command(
    patterns: tuple[str, ...], exclude: tuple[str, ...], with_hist: bool, by: str, where: str, order: Order, cpu: bool,
    target: ProgramTarget, console: Console,
) -> None:  # fmt: skip
    """Count and time the calls of the functions that match PATTERN (default: all).

    With --json: one object with program, call, result, matched, attached, skipped, functions and left_out.
    """
    if with_hist and by != "function":
        raise Failure(f"--hist shows the durations of functions, not of each {by}: give --hist or --by {by}")
    question = question_of(by, where)
    if target.running is not None:
        _stat_running(target.running, patterns, exclude, order, cpu, with_hist, by, question, console)
    from fprobe.cli import conclusion, counted, matching, program
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.matching import attached
    from fprobe.cli.running import run

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    match = matching.match_or_fail(module, patterns or ("*",), exclude, target.notrace)
    counts = counted.counting(by, cpu, question, match)
    ctrl_c.hold_for_run()
    with console.alone(), attached(match, action=counts.action) as probe:
        console.note(f"# counting {match.described}, calling {call}")
        outcome = run(call)
        probe.disable()
        rows = counts.rows(match)
        for line in text(rows, console, by, order, with_hist):
            console.line(line)
        conclusion.summarise(console, call, outcome, match, probe, _remarks(rows, where), as_objects=False)
        shown, left_out = order.apply(rows)
        functions = [_object(row, by, with_hist) for row in shown]
        console.document(document(module.name, call, outcome, match, functions, left_out), functions)
        conclusion.conclude(outcome)


def _stat_running(
    targets: Targets, patterns: tuple[str, ...], exclude: tuple[str, ...], order: Order, cpu: bool, with_hist: bool,
    by: str, question: Values | None, console: Console,
) -> None:  # fmt: skip
    """`fprobe stat -p`. Ends this process."""
    from fprobe.cli.run import checked
    from fprobe.report.counts import CPU, SELF
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.session import Settings

    refuse_with_pid(exclude=exclude, call=call_words())
    if not patterns:
        raise Failure("no function is named; give a library and its functions, such as 'libz:*'")
    counted = checked(patterns)
    selection = ReportSelection(counted, counted if with_hist else (), (), by, order=order)
    settings = Settings(by=by_number(by), measures=CPU if cpu else SELF, **asked_of(counted, question))
    attach_and_report(targets, settings, selection, console.output, console.form)


def text(rows: list[Row], console: Console, by: str, order: Order, with_hist: bool) -> Iterator[str]:
    """The functions that were called. `by`: function, caller or thread."""
    from fprobe.report.tables import StatRow, group_text, hist_lines, stat_lines

    called = [
        StatRow(f"{row.name}{row.owner}", row.stat, group_text(by, row.origin))
        for row in rows
        if row.stat.hits or row.stat.missed
    ]
    shown, left_out = order.apply(called)
    yield from stat_lines(shown, by, console, console.width, order.sort)
    if left_out:
        yield console.dim(f"# {order.left_out(left_out)}")
    if with_hist:
        yield from hist_lines(shown, console.width)


def _remarks(rows: list[Row], where: str) -> list[str]:
    from fprobe.cli.console import count

    idle = sum(not row.stat.hits for row in rows)
    what = f"without a call that passed {where!r}" if where else "never called"
    return [f"{count(idle, 'function')} {what}"] if idle else []


def _object(row: Row, by: str, with_hist: bool) -> dict[str, Any]:
    from fprobe.report.tables import origin_object, stat_object

    named: dict[str, Any] = {
        "name": row.name,
        "symbol": row.symbol,
        "module": row.module,
        **origin_object(by, row.origin),
    }
    return named | stat_object(row.stat, with_histogram=with_hist)


def document(
    program: str,
    call: ProgramCall,
    outcome: Outcome,
    match: MatchedFunctions,
    functions: list[dict[str, Any]],
    left_out: int,
) -> dict[str, Any]:
    """The output of --json; with an `error` if the program failed. `left_out`: number of rows that are not shown."""
    from fprobe.cli.conclusion import ending_with_error, outcome_object

    found = {
        "matched": match.matched,
        "attached": len(match.sites),
        "skipped": [skipped._asdict() for skipped in match.skipped],
        "functions": functions,
        "left_out": left_out,
    }
    return {"program": program} | outcome_object(call, outcome) | found | ending_with_error(outcome)
