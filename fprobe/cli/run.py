"""`fprobe run`: run a Python program with probes on the libraries that it loads."""

from __future__ import annotations

import click

from fprobe.cli.python_program import BY, PythonCommand, checked, program_words, start

_EPILOG = """\b
Examples:
  fprobe run --stat 'libz:*' app.py input.gz
  fprobe run --hist libz:deflate -m mypackage
  fprobe run --stat 'libsqlite3:sqlite3_*' --by caller -o report.txt -c 'import app; app.main()'

The program runs as if python had started it. The report goes to standard error, or to the file of -o.
"""


@click.command(
    "run", cls=PythonCommand, epilog=_EPILOG, short_help="Run a Python program with probes.",
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGUMENTS]",
)  # fmt: skip
@click.option("--stat", "stats", metavar="PATTERN", multiple=True, help="Count and time these functions; repeatable.")
@click.option("--hist", "hists", metavar="PATTERN", multiple=True, help="Show how long their calls take; repeatable.")
@click.option("--by", type=click.Choice(list(BY)), default="function", show_default=True, help="Tell calls apart.")
@click.option("--output", "-o", metavar="FILE", help="Write the report there.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
def run_command(stats: tuple[str, ...], hists: tuple[str, ...], by: str, output: str | None, as_json: bool) -> None:
    """Run SCRIPT, -m MODULE or -c CODE, with the arguments that follow, as python does.

    A PATTERN names functions of a library, loaded now or later: 'libz:inflate*'. Exit code: the program's.
    """
    patterns = checked((*stats, *hists))
    if not patterns:
        from fprobe.run.launching import replace

        replace(program_words())
    program, counts, journal = start(patterns, by)
    from fprobe.run import reporting
    from fprobe.run.launching import end_like

    wanted = reporting.Wanted(bool(stats), bool(hists), by)
    end_like(reporting.after(program, counts, journal, wanted, output, as_json))
