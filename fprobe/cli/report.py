"""`fprobe report`: show the records of a trace.dat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import output_options

if TYPE_CHECKING:
    from fprobe.export.trace_dat_reader import Trace

_EPILOG = """\b
Examples:
  fprobe report
  fprobe report calls.dat --format tree
  fprobe report calls.dat --format folded > calls.folded
  fprobe report calls.dat --format chrome > calls.json
  fprobe report --json | jq 'select(.event == "reads") | .count'

tree, folded and chrome show calls, either from the function_graph tracer or from an entry event and a return event of the
same function. chrome://tracing and ui.perfetto.dev open the format chrome.
"""


@click.command("report", epilog=_EPILOG, short_help="Show a trace.dat.")
@click.argument("file", metavar="[FILE]", default="trace.dat", shell_complete=candidates.files)
@click.option(
    "--format", "-f", "form", type=click.Choice(["kernel", "tree", "folded", "chrome"]), default="kernel",
    show_default=True, help="How.",
)  # fmt: skip
@output_options
def report_command(file: str, form: str, console: Console) -> None:
    """Show the records of FILE (default: trace.dat), which `fprobe record` or trace-cmd has written.

    With --json: an object for each record, with event, time_ns, cpu, tid, comm, lost and its fields.
    """
    from fprobe.cli.failure import input_errors
    from fprobe.export.trace_dat_reader import Trace

    with input_errors():
        trace = Trace(file)
    if console.json:
        for item in _objects(trace):
            console.object(item)
        return
    for line in _lines(trace, form):
        console.line(line)


def _lines(trace: Trace, form: str) -> Any:
    """The lines of a format, whose module is imported only now."""
    from importlib import import_module

    return import_module(f"fprobe.export.{form}").lines(trace)


def _objects(trace: Trace) -> Any:
    from fprobe.export.objects import objects

    return objects(trace)
