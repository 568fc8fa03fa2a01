"""`fprobe top`: run a Python program, and show its calls of library functions while it runs."""

from __future__ import annotations

import click

from fprobe.cli.failure import Failure
from fprobe.cli.python_program import BY, PythonCommand, by_option, checked, start

_EPILOG = """\b
Examples:
  fprobe top --stat 'libz:*' app.py
  fprobe top --stat 'libsqlite3:sqlite3_*' --sort p99 -m mypackage
  fprobe top --stat 'libz:*' --by thread app.py

The program's output is shown after it has ended.
"""
_SORT_KEYS = ("total", "rate", "calls", "average", "p50", "p99", "name")


@click.command(
    "top", cls=PythonCommand, epilog=_EPILOG, short_help="Show calls while a program runs.",
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGUMENTS]",
)  # fmt: skip
@click.option(
    "--stat", "stats", metavar="PATTERN", multiple=True, required=True, help="Show these functions; repeatable."
)
@by_option
@click.option("--sort", "-s", type=click.Choice(_SORT_KEYS), default="total", show_default=True, help="Order of rows.")
@click.option(
    "--delay", "-d", type=click.FloatRange(0.05), default=1.0, show_default=True, help="Seconds between updates."
)
@click.option("--rows", "-n", type=click.IntRange(1), help="Number of rows; default: as many as fit on the terminal.")
def top_command(stats: tuple[str, ...], by: str, sort: str, delay: float, rows: int | None) -> None:
    """Run SCRIPT, -m MODULE or -c CODE as `fprobe run` does, and show its calls of the functions that PATTERN names.

    On a terminal the table is redrawn; elsewhere a new one is printed each time. Exit code: the program's.
    """
    import os

    from fprobe.run.session import Settings

    patterns = checked(stats)
    try:
        kept = os.memfd_create("fprobe-top")
    except OSError as error:
        raise Failure(f"the memory for the program's output could not be created: {error.strerror}", 1) from None
    program, counts, journal = start(Settings(patterns, BY[by]), kept)
    from fprobe.run import live
    from fprobe.run.launching import end_like

    end_like(live.follow(program, counts, journal, live.View(sort, delay, rows, by), kept))
