"""`fprobe top`: a table of calls while a program runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli.attaching import attached_to, exit_code, pid_options
from fprobe.cli.failure import FAILED, Failure
from fprobe.cli.formats import absent_if_refused, empty, format_of, report_file
from fprobe.cli.options import full_names_option
from fprobe.cli.run import PythonCommand, checked, program_words, refuse_program, start
from fprobe.cli.selecting import asked_of, by_number, by_option, question_of, where_option
from fprobe.cli.surviving import disk_errors
from fprobe.run.launcher.top_view import SORT_KEYS

if TYPE_CHECKING:
    from fprobe.run.launcher.attached import Targets
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.launcher.results import Results
    from fprobe.run.launcher.top_view import TopView
    from fprobe.run.session import Settings
    from sandbox.x86_64.tsc import Ticks

_FORMATS = ("text", "json", "ndjson", "csv")
_EPILOG = """\b
Examples:
  fprobe top --stat 'libz:*' app.py
  fprobe top --stat 'libsqlite3:sqlite3_*' --sort p99 -m mypackage
  fprobe top --stat 'libz:*' --by thread app.py
  fprobe top --stat libc:read --by 'arg(fd)' app.py
  fprobe top --stat 'libz:*' -p 4711

The program's output is shown after it has ended.
"""


class _Seconds(click.FloatRange):
    """A range of which `nan` is not a part."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return number


@click.command(
    "top", cls=PythonCommand, epilog=_EPILOG, short_help="Show calls while a program runs.",
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|-c CODE|PROGRAM [ARGUMENTS]",
)  # fmt: skip
@click.option(
    "--stat", "stats", metavar="PATTERN", multiple=True, required=True, help="Show these functions; repeatable."
)
@by_option
@where_option
@full_names_option
@click.option("--sort", "-s", type=click.Choice(SORT_KEYS), default="total", show_default=True, help="Order of rows.")
@click.option(
    "--delay", "-d", type=_Seconds(0.05, 86400), default=1.0, show_default=True, help="Seconds between updates."
)
@pid_options
@click.option("--rows", "-n", type=click.IntRange(1), help="Number of rows; default: as many as fit on the terminal.")
@click.option("--output", "-o", metavar="FILE", help="Also write what was counted to FILE, when the program has ended.")
@click.option(
    "--format", "-f", "form", metavar="FORMAT", help=f"{', '.join(_FORMATS)}; default: that of -o's suffix, or text."
)
def top_command(
    stats: tuple[str, ...], by: str, where: str, sort: str, delay: float, rows: int | None, output: str | None,
    form: str | None, targets: Targets | None,
) -> None:  # fmt: skip
    """Run a program as `fprobe run` does, and show its calls of the functions that PATTERN names.

    On a terminal the table is redrawn; elsewhere a new one is printed each time. Exit code: the program's.

    With -p on a terminal, keys sort and filter the rows: h lists them. A program that is run here has the keys itself.
    """
    from fprobe.report.counts import SELF
    from fprobe.run.launcher.report_selection import ReportSelection
    from fprobe.run.launcher.top_view import TopView
    from fprobe.run.session import Settings, memory_file

    settings = Settings(by=by_number(by), measures=SELF, **asked_of(checked(stats), question_of(by, where)))
    if form is not None and output is None:
        raise Failure("--format is of the file of -o, which is not given: give -o FILE")
    form = format_of(form, output, _FORMATS, "text")
    selection = ReportSelection(stats, (), (), by)
    if targets is not None:
        refuse_program(settings)
        _top_running(targets, settings, TopView(sort, delay, rows, by), selection, output, form)
    program_words()  # before the file is emptied
    report = report_file(output) if output is not None else None
    try:
        shown = memory_file("fprobe-top")
    except OSError as error:
        raise Failure(f"the memory for the program's output could not be created: {error.strerror}", 1) from None
    program, counts, journal = start(settings, shown)
    from fprobe.run.ending import end_like
    from fprobe.run.launcher import live
    from fprobe.run.launcher.report import recorded_of, write_report

    def write(found: Results, ticks: Ticks) -> None:
        if report is not None:
            with disk_errors(str(output)):
                write_report(report, found, recorded_of(found, counts, selection), selection, ticks, form)

    end_like(live.follow(program, counts, journal, TopView(sort, delay, rows, by), shown, write))


def _top_running(
    targets: Targets, settings: Settings, view: TopView, selection: ReportSelection, output: str | None, form: str
) -> None:
    """`fprobe top -p`. Ends this process."""
    from fprobe.cli.interrupting import end_process
    from fprobe.run.launcher.attached_report import AttachedReport
    from fprobe.run.launcher.live import follow_attached

    failure: OSError | None = None
    with absent_if_refused(output):
        report = report_file(output, kept=True) if output is not None else None
        with attached_to(targets, settings) as processes:
            try:
                found = follow_attached(processes, view)
            except OSError as error:
                failure = error
    if report is not None:
        empty(report, form)
        with disk_errors(str(output)):
            AttachedReport(processes, selection, report, form).write()
    if failure is not None:
        raise Failure(f"the table could not be written: {failure.strerror}", FAILED)
    end_process(exit_code(found))
