"""The verbs for trace.dat: `fprobe record` runs the program and writes one, `fprobe report` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import (
    CallingCommand,
    Target,
    attached,
    call_option,
    call_words,
    definition_option,
    filter_option,
    output_options,
    program_options,
)

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.events.recorded import Event
    from fprobe.export.recording import Arriving, Recording
    from fprobe.export.trace_dat_reader import Trace


_RECORD_EPILOG = """\b
Examples:
  fprobe record -e 'p:reads vfs_read count=%dx:u64' --filter 'count > 100'
  fprobe record -e 'f:in vfs_*' -e 'f:out vfs_*%return' -o calls.dat
  fprobe record -e 'r:sums func_sum $retval' --program prog.ll --call main 10
  fprobe record -e 'p:reads vfs_read count=%dx:u64' --live
  fprobe report trace.dat

Definitions, filters and triggers are those of the kernel (docs/events.md). trace-cmd and KernelShark read the file too.
"""


@click.command("record", cls=CallingCommand, epilog=_RECORD_EPILOG, short_help="Record probe events to a file.")
@definition_option()
@filter_option
@click.option(
    "--trigger", "triggers", metavar="TRIGGER", multiple=True, shell_complete=candidates.triggers,
    help="A trigger of each event; repeatable.",
)  # fmt: skip
@click.option(
    "--output", "-o", metavar="FILE", default="trace.dat", show_default=True, shell_complete=candidates.files,
    help="The file to write.",
)  # fmt: skip
@click.option("--live", is_flag=True, help="Show the records, too, as they arrive.")
@call_option
@program_options
@output_options
def record_command(
    definitions: tuple[str, ...],
    filter_text: str | None,
    triggers: tuple[str, ...],
    output: str,
    live: bool,
    target: Target,
    console: Console,
) -> None:
    """Run the program with the events of DEFINITION enabled, and write their records to a trace.dat.

    Ctrl-C and a full disk end the recording; records written before are kept. With --json: one object at the end; with --live,
    an object per line, with a "type".
    """
    from fprobe.cli import program
    from fprobe.cli.conclusion import conclude
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.export.recording import Recording

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    ctrl_c.hold_for_run()
    with console.alone(), attached(definitions, filter_text, triggers) as events:
        arriving = _arriving(events) if live else None
        with input_errors():
            recording = Recording(output, events.array, arriving)
        console.note(f"# recording {', '.join(each.name for each in events.formats)}, calling {call}")
        try:
            outcome = _run(call, console, recording, arriving)
        finally:  # also if the reader of the records has closed the pipe
            recording.finish(events.disable)
        if arriving is not None and not outcome.interrupted:
            _show(console, arriving)
        _summarise(console, call, outcome, events, recording, live)
        conclude(outcome)


def _run(call: ProgramCall, console: Console, recording: Recording, arriving: Arriving | None) -> Outcome:
    """Make the call while the records are written, and shown if they are wanted."""
    from fprobe.cli.console import progress_line
    from fprobe.cli.running import run

    if arriving is not None:
        return run(call, lambda: _drain_and_show(console, recording, arriving))
    with progress_line(lambda: recording.progress):
        return run(call, recording.drain)


def _arriving(events: Event) -> Arriving:
    from fprobe.export.recording import Arriving

    return Arriving(events.array.buffer, {each.id: each for each in events.formats})


def _drain_and_show(console: Console, recording: Recording, arriving: Arriving) -> bool:
    has_more = recording.drain()
    _show(console, arriving)
    return has_more


def _show(console: Console, arriving: Arriving) -> None:
    """Print the records that have arrived, up to Ctrl-C."""
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.export.records import lines, objects

    if console.json:
        for item in takewhile(lambda _: not ctrl_c.pressed, objects(arriving)):
            console.object({"type": "record", **item})
    else:
        for line in takewhile(lambda _: not ctrl_c.pressed, lines(arriving)):
            console.line(line)
    console.flush()


def _summarise(
    console: Console, call: ProgramCall, outcome: Outcome, events: Event, recording: Recording, live: bool
) -> None:
    from fprobe.cli.conclusion import print_outcome
    from fprobe.cli.console import count

    print_outcome(console, call, outcome)
    console.note(f"{count(events.hits, 'hit')}, {count(events.missed, 'miss')}")
    console.note(f"{recording.file.path}: {recording.text}")
    document = _document(call, outcome, events, recording)
    if live:
        console.object({"type": "summary", **document})
    else:
        console.document(document)
    console.flush()


def _document(call: ProgramCall, outcome: Outcome, events: Event, recording: Recording) -> dict[str, Any]:
    from fprobe.cli.conclusion import ending_with_error, outcome_object

    found = {
        "events": [f"{each.group}/{each.name}" for each in events.formats],
        "hits": events.hits,
        "missed": events.missed,
        "lost": recording.lost,
        "file": recording.file.path,
        "interrupted": outcome.interrupted,
        "disk_full": recording.failure is not None,
    }
    return outcome_object(call, outcome) | found | ending_with_error(outcome)


_REPORT_EPILOG = """\b
Examples:
  fprobe report
  fprobe report calls.dat --format tree
  fprobe report calls.dat --format folded > calls.folded
  fprobe report calls.dat --format chrome > calls.json
  fprobe report --json | jq 'select(.event == "reads") | .count'

tree, folded and chrome show calls, either from the function_graph tracer or from an entry event and a return event of the
same function. chrome://tracing and ui.perfetto.dev open the format chrome.
"""


@click.command("report", epilog=_REPORT_EPILOG, short_help="Show a trace.dat.")
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
        from fprobe.export.records import objects

        for item in objects(trace):
            console.object(item)
        return
    for line in _lines(trace, form):
        console.line(line)


def _lines(trace: Trace, form: str) -> Iterator[str]:
    """The lines of a format. Calls are paired, and their module imported, only where the format shows them."""
    if form == "kernel":
        from fprobe.export.records import lines

        return lines(trace)
    from fprobe.export import calls

    return {"tree": calls.tree_lines, "folded": calls.folded_lines, "chrome": calls.chrome_lines}[form](trace)
