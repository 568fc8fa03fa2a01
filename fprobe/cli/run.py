"""`fprobe run`: run a Python program with probes on the libraries that it loads."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from fprobe.cli.failure import Failure
from fprobe.cli.python_program import BY, PythonCommand, by_option, checked, program_words, start

_EPILOG = """\b
Examples:
  fprobe run --stat 'libz:*' app.py input.gz
  fprobe run --hist libz:deflate -m mypackage
  fprobe run --stat 'libsqlite3:sqlite3_*' --by caller -o report.txt -c 'import app; app.main()'
  fprobe run --trace 'libz:*flate*' --format perfetto -o app.pftrace app.py
  fprobe run --stacks libz:deflate --format flame -o app.html app.py
  fprobe run -e 'r:packed libz:deflate result=$retval:s32' app.py

The program runs as if python had started it. The report goes to standard error, or to the file of -o.
"""
_FORMATS = ("text", "json", "perfetto", "folded", "flame")
_NEEDS = {"perfetto": "--trace", "folded": "--stacks", "flame": "--stacks"}


_REPEATED: dict[str, Any] = {"metavar": "PATTERN", "multiple": True}


def _opened(output: str | None) -> int:
    """A descriptor for the report. Raises Failure before anything is run."""
    if output is None:
        return 2
    try:
        return os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise Failure(f"{output}: {error.strerror}") from None


def _check_native(native: str, traces: tuple[str, ...]) -> None:
    """Check everything that does not require executing the file. Raises Failure."""
    path, _, names = native.partition(":")
    if not traces:
        raise Failure("--native handles the calls of --trace, which is not given; give --trace PATTERN")
    if not path or not names.strip(":"):
        raise Failure(f"--native takes FILE:ENTRY or FILE:ENTRY:EXIT, not {native!r}")
    if not Path(path).is_file():
        raise Failure(f"{path}: no such file")


def _check_events(events: tuple[str, ...]) -> None:
    """Check the form of the definitions; the program checks the rest, since it has the functions. Raises Failure."""
    for text in events:
        if not re.match(r"[prf]", text):
            raise Failure(f"-e is {text!r}; give a line p, r or f, such as 'p:asked libz:deflate strm=%di'")


@click.command(
    "run", cls=PythonCommand, epilog=_EPILOG, short_help="Run a Python program with probes.",
    options_metavar="[OPTIONS] SCRIPT|-m MODULE|-c CODE [ARGUMENTS]",
)  # fmt: skip
@click.option("--stat", "stats", **_REPEATED, help="Count and time these functions; repeatable.")
@click.option("--hist", "hists", **_REPEATED, help="Show a histogram of these functions' durations; repeatable.")
@click.option("--trace", "traces", **_REPEATED, help="Show every call of these functions; repeatable.")
@click.option("--stacks", **_REPEATED, help="Show the callers of these functions, native and Python; repeatable.")
@click.option(
    "--native", metavar="FILE:ENTRY[:EXIT]", help="Run these native handlers for --trace, and show their maps."
)
@click.option(
    "--event", "-e", "events", metavar="DEFINITION", multiple=True,
    help="Record this probe event, a line p, r or f; repeatable.",
)  # fmt: skip
@by_option
@click.option("--output", "-o", metavar="FILE", help="Write the report to FILE.")
@click.option("--format", "format_", type=click.Choice(_FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def run_command(
    stats: tuple[str, ...], hists: tuple[str, ...], traces: tuple[str, ...], stacks: tuple[str, ...],
    native: str | None, events: tuple[str, ...], by: str, output: str | None, format_: str, as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT, -m MODULE or -c CODE, with the arguments that follow, as python does.

    A PATTERN names functions of a library, loaded now or later: 'libz:inflate*'. Exit code: the program's.
    """
    recorded = () if native else traces
    format_ = "json" if as_json else format_
    needed = _NEEDS.get(format_)
    if needed and not {"--trace": recorded, "--stacks": stacks}[needed]:
        raise Failure(f"--format {format_} shows what {needed} records: give {needed} PATTERN")
    if native:
        _check_native(native, traces)
    _check_events(events)
    counted, stacked, handled = checked((*stats, *hists, *recorded)), checked(stacks), checked(traces if native else ())
    if not (counted or stacked or handled or events):
        from fprobe.run.launching import replace

        replace(program_words())
    from fprobe.run.session import Settings

    report = _opened(output)
    settings = Settings(counted, BY[by], bool(recorded), stacked, handled, native or "", events)
    program, counts, journal = start(settings)
    from fprobe.run import reporting
    from fprobe.run.launching import end_like

    wanted = reporting.Wanted(stats, hists, traces, by, native or "", events)
    end_like(reporting.after(program, counts, journal, wanted, report, format_))
