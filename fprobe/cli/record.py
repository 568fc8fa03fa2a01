"""`fprobe record`: run the program with probe events, and write their records to a trace.dat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.definitions import attached, definition_option, filter_option
from fprobe.cli.options import CallingCommand, Target, call_option, call_words, output_options, program_options

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.probe_events import Event
    from fprobe.recording import Recording

_EPILOG = """\b
Examples:
  fprobe record -e 'p:reads vfs_read count=%dx:u64' --filter 'count > 100'
  fprobe record -e 'f:in vfs_*' -e 'f:out vfs_*%return' -o calls.dat
  fprobe record -e 'r:sums func_sum $retval' --program prog.ll --call main 10
  fprobe report trace.dat

Definitions, filters and triggers are those of the kernel (docs/events.md). trace-cmd and KernelShark read the file too.
"""


@click.command("record", cls=CallingCommand, epilog=_EPILOG, short_help="Record probe events to a file.")
@definition_option()
@filter_option
@click.option("--trigger", "triggers", metavar="TRIGGER", multiple=True, help="A trigger of each event; repeatable.")
@click.option(
    "--output", "-o", metavar="FILE", default="trace.dat", show_default=True, shell_complete=candidates.files,
    help="The file to write.",
)  # fmt: skip
@call_option
@program_options
@output_options
def record_command(
    definitions: tuple[str, ...],
    filter_text: str | None,
    triggers: tuple[str, ...],
    output: str,
    target: Target,
    console: Console,
) -> None:
    """Run the program with the events of DEFINITION enabled, and write their records to a trace.dat.

    Ctrl-C and a full disk end the recording; records written before are kept. With --json: one object at the end.
    """
    from fprobe.cli import program
    from fprobe.cli.conclusion import conclude
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.running import run
    from fprobe.recording import Recording

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    ctrl_c.hold()
    ctrl_c.check()
    with console.alone(), attached(definitions, filter_text, triggers) as events:
        with input_errors():
            recording = Recording(output, events.array)
        console.note(f"# recording {', '.join(each.name for each in events.formats)}, calling {call}")
        outcome = run(call, recording.drain)
        recording.finish(events.disable)
        _summarise(console, call, outcome, events, recording)
        conclude(outcome)


def _summarise(console: Console, call: ProgramCall, outcome: Outcome, events: Event, recording: Recording) -> None:
    from fprobe.cli import summary
    from fprobe.cli.conclusion import outcome_line
    from fprobe.cli.interrupting import ctrl_c

    ctrl_c.reported = True
    console.line(outcome_line(call, outcome))
    console.note(f"{summary.count(events.hits, 'hit')}, {summary.count(events.missed, 'miss')}")
    console.note(f"{recording.file.path}: {recording.text}")
    console.document(_document(call, outcome, events, recording))
    console.flush()


def _document(call: ProgramCall, outcome: Outcome, events: Event, recording: Recording) -> dict[str, Any]:
    from fprobe.cli.conclusion import ending
    from fprobe.cli.failure import of_call

    found = {
        "call": str(call),
        "result": outcome.result if outcome.returned else None,
        "events": [f"{each.group}/{each.name}" for each in events.formats],
        "hits": events.hits,
        "missed": events.missed,
        "lost": recording.lost,
        "file": recording.file.path,
        "interrupted": outcome.interrupted,
        "disk_full": recording.failure is not None,
    } | ending(outcome)
    return found | {"error": of_call(outcome.error).as_object()} if outcome.error else found
