"""`fprobe report`: shows a trace.dat, or converts it to another format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure, of_system
from fprobe.cli.formats import FORMATS, check_package, format_of, report_file
from fprobe.cli.options import output_options

if TYPE_CHECKING:
    from fprobe.export.trace_dat_reader import Trace

_EPILOG = """\b
Examples:
  fprobe report
  fprobe report calls.dat --format tree
  fprobe report calls.dat --format folded > calls.folded
  fprobe report calls.dat -o calls.speedscope.json
  fprobe report calls.dat -o calls.pftrace
  fprobe report calls.dat -o calls.csv
  fprobe report calls.dat -o calls.parquet
  fprobe report --json | jq 'select(.event == "reads") | .count'

tree, folded, speedscope and perfetto show calls, either from the function_graph tracer or from an entry event and a return
event of the same function. speedscope.app opens the format speedscope, and ui.perfetto.dev perfetto, which needs the extra
targets; parquet needs the extra arrow.
"""
REPORT_FORMATS = ("text", "tree", "folded", "speedscope", "ndjson", "csv", "perfetto", "parquet")


@click.command("report", epilog=_EPILOG, short_help="Show a trace.dat.")
@click.argument("file", metavar="[FILE]", default="trace.dat", shell_complete=candidates.files)
@click.option("--format", "-f", "form", metavar="FORMAT", help=f"{', '.join(REPORT_FORMATS)}; default: text.")
@click.option(
    "--output", "-o", metavar="FILE", shell_complete=candidates.files,
    help="Write to FILE, in the format of its suffix; default: standard output.",
)  # fmt: skip
@output_options
def report_command(file: str, form: str | None, output: str | None, console: Console) -> None:
    """Show the records of FILE (default: trace.dat), which `fprobe record` or trace-cmd has written.

    With --json: an object for each record, with event, time_ns, cpu, tid, comm, lost and its fields.
    """
    from fprobe.export.trace_dat_reader import Trace

    chosen = format_of(form, output, REPORT_FORMATS, "ndjson" if console.json else "text")
    if console.json and chosen != "ndjson":
        raise Failure(f"--json is --format ndjson, and the format is {chosen}: give one of them")
    if FORMATS[chosen].is_binary and output is None:
        raise Failure(f"the format {chosen} is not for a terminal: give -o FILE")
    check_package(chosen)
    try:
        trace = Trace(file)
    except OSError as error:
        raise Failure(of_system(error)) from None
    except ValueError as error:
        raise Failure(str(error)) from None
    try:
        if output is not None:
            write(trace, chosen, output)
        elif console.json:
            from fprobe.export.records import objects

            for item in objects(trace):
                console.object(item)
        else:
            console.lines(_lines(trace, chosen), is_data=chosen not in ("text", "tree"))
    except ValueError as error:  # the file is damaged; what was read is shown
        console.flush()
        message = str(error)
        raise Failure(message if message.startswith(file) else f"{file}: {message}") from None
    if trace.cut_off:
        console.flush()
        click.echo(f"fprobe: {file}: {trace.cut_off}; records may be missing at the end", err=True)


def write(trace: Trace, form: str, output: str) -> None:
    """Write a file of one of `REPORT_FORMATS`. Raises Failure and OSError; ValueError for a damaged trace."""
    from fprobe.cli.surviving import disk_errors

    with disk_errors(output):
        if form == "parquet":
            _write_parquet(trace, output)
        elif form == "perfetto":
            _write_perfetto(trace, output)
        else:
            _write_lines(_lines(trace, form), output)


def _lines(trace: Trace, form: str) -> Iterator[str]:
    """The lines of a format. Calls are paired, and their module imported, only where the format shows them."""
    if form == "ndjson":
        from fprobe.export.records import objects
        from fprobe.report.rows import json_text

        return map(json_text, objects(trace))
    if form == "csv":
        from fprobe.export.records import objects
        from fprobe.report.rows import csv_lines

        return csv_lines(lambda: objects(trace))
    if form == "text":
        from fprobe.export.records import lines

        return lines(trace)
    from fprobe.export import calls

    if form == "speedscope":
        return iter([calls.speedscope(trace, trace.path)])
    return {"tree": calls.tree_lines, "folded": calls.folded_lines}[form](trace)


def _write_lines(lines: Iterator[str], output: str) -> None:
    from sandbox.process.writing import as_bytes, write_all

    descriptor = report_file(output)
    for line in lines:
        write_all(descriptor, as_bytes(f"{line}\n"))


def _write_perfetto(trace: Trace, output: str) -> None:
    from fprobe.export.calls import perfetto_trace
    from sandbox.process.writing import write_all

    write_all(report_file(output), perfetto_trace(trace))


def _write_parquet(trace: Trace, output: str) -> None:
    from fprobe.cli.surviving import disk_failure
    from fprobe.export.columns.trace_dat import convert

    unwritten = convert(trace, output)
    if unwritten:
        raise disk_failure(output, f"{unwritten:,} rows are missing")
