"""`fprobe record`: runs the program and writes the records of its probe events to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import refuse_with_pid
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.cli.formats import check_package, format_of
from fprobe.cli.options import (
    NO_EVENT,
    CallingCommand,
    ProgramTarget,
    attached,
    call_option,
    call_words,
    definition_option,
    filter_option,
    output_options,
    program_options,
    split_call,
)
from fprobe.cli.report import REPORT_FORMATS

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.cli.surviving import Survival
    from fprobe.export.recording import Arriving, Recording
    from fprobe.recorded_events import Event
    from ftrace.tracing.instances.trace_array import TraceArray


_RECORD_EPILOG = """\b
Examples:
  fprobe record -e 'p:reads vfs_read count=%dx:u64' --filter 'count > 100'
  fprobe record --trace 'vfs_*' -o calls.dat
  fprobe record -e 'r:sums func_sum $retval' --program prog.ll --call main 10
  fprobe record -e 'p:reads vfs_read' -B large \\
      -e 'p:writes vfs_write count=%dx:u64'
  fprobe record -e 'p:reads vfs_read count=%dx:u64' --live
  fprobe record -e 'p:reads vfs_read count=%dx:u64' -o reads.parquet
  fprobe record -e 'p:reads vfs_read count=%dx:u64' -o reads.csv
  fprobe record -p 4711 --duration 10 \\
      -e 'r:packed libz:deflate result=$retval:s32'
  fprobe report trace.dat

Definitions, filters and triggers are those of the kernel (docs/events.md). trace-cmd and KernelShark read the file too.
"""


_WRITTEN = ("trace.dat", "parquet")
"""Formats that are written while the program runs. A file of another one is made of a trace.dat at the end."""
_FORMATS = (*_WRITTEN, *(each for each in REPORT_FORMATS if each not in _WRITTEN))
_ORDER = "fprobe.record.order"


class RecordingCommand(CallingCommand):
    """A command whose options -e and -B have an order: an event belongs to the instance before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the order of the options."""
        _, _, order = self.make_parser(ctx).parse_args(split_call(args)[0])
        ctx.meta[_ORDER] = [option.name for option in order if option.name in ("buffers", "definitions")]
        return super().parse_args(ctx, args)


@click.command("record", cls=RecordingCommand, epilog=_RECORD_EPILOG, short_help="Record probe events to a file.")
@definition_option(required=False)
@click.option(
    "--trace", "traces", metavar="PATTERN", multiple=True, shell_complete=candidates.functions,
    help="Record the calls of these functions, with arguments and results; repeatable.",
)  # fmt: skip
@click.option(
    "--buffer", "-B", "buffers", metavar="NAME", multiple=True,
    help="Record the events that follow into the instance NAME; repeatable.",
)  # fmt: skip
@filter_option
@click.option(
    "--trigger", "triggers", metavar="TRIGGER", multiple=True, shell_complete=candidates.triggers,
    help="A trigger of each event; repeatable.",
)  # fmt: skip
@click.option(
    "--output", "-o", metavar="FILE", shell_complete=candidates.files,
    help="The file to write, in the format of its suffix; default: trace.dat, or trace.FORMAT.",
)  # fmt: skip
@click.option("--format", "-f", "form", metavar="FORMAT", help=f"{', '.join(_FORMATS)}; default: trace.dat.")
@click.option(
    "--compression", type=click.Choice(["none", "zlib", "zstd"]), default="none", show_default=True,
    help="How to compress the file at the end; Debian's trace-cmd reads none and zstd.",
)  # fmt: skip
@click.option(
    "--buffer-size", "-b", "size_kb", type=click.IntRange(8, 16 << 20), metavar="KB",
    help="The size of each thread's buffer, in KiB; default 1408.",
)  # fmt: skip
@click.option("--live", is_flag=True, help="Show the records, too, as they arrive.")
@call_option
@program_options
@output_options
def record_command(
    definitions: tuple[str, ...],
    traces: tuple[str, ...],
    buffers: tuple[str, ...],
    filter_text: str | None,
    triggers: tuple[str, ...],
    output: str | None,
    form: str | None,
    compression: str,
    size_kb: int | None,
    live: bool,
    target: ProgramTarget,
    console: Console,
) -> None:
    """Run the program with the events of DEFINITION enabled, and write their records to a trace.dat, or a file of FORMAT.

    Ctrl-C and a full disk end the recording; records written before are kept. With --json: one object at the end; with --live,
    an object per line, with a "type".
    """
    form = format_of(form, output, _FORMATS, "trace.dat")
    output = output or (form if form == "trace.dat" else f"trace.{form}")
    if form != "trace.dat" and compression != "none":
        raise Failure(f"--compression is for trace.dat, and the format is {form}: leave it out")
    if not definitions and not traces:
        raise Failure(NO_EVENT)
    if target.running is not None:
        from fprobe.cli.remote_record import record_running
        from fprobe.run.session import Settings

        if form not in _WRITTEN:
            raise Failure(
                f"-p records into a trace.dat or Parquet, not {form}: `fprobe report` converts a trace.dat to other formats"
            )
        check_package(form)
        if traces:
            raise Failure(
                "record -p records the events of -e; fprobe run -p PID --trace PATTERN -o FILE.parquet records calls"
            )
        refuse_with_pid(buffer=buffers, live=live, call=call_words())
        settings = Settings(events=definitions, triggers=triggers, filter=filter_text or "", buffer_kb=size_kb or 0)
        record_running(target.running, settings, output, compression if form == "trace.dat" else None, console)
    from fprobe.cli import program
    from fprobe.cli.conclusion import conclude_events
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.recorded_calls import definitions_of_calls
    from fprobe.cli.surviving import disk_errors, disk_failure, survive

    groups = _by_buffer(definitions, buffers)
    check_package(form)
    path = output if form in _WRITTEN else f"{output}.dat"
    with input_errors():
        _make_space(size_kb)
        survival = survive(output if form == "parquet" else None)
    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    groups[""] += definitions_of_calls(module, traces, target.notrace)
    ctrl_c.hold_for_run()
    with console.alone(), _attached(groups, filter_text, triggers, survival) as events:
        arriving = _arriving(events) if live else None
        with input_errors(), disk_errors(output):
            if size_kb is not None:
                for each in events.values():
                    each.array.buffer.size_kb = size_kb
            recording = _recording(path, events, arriving, compression, survival)
            survival.begin(recording)
        console.note(f"# recording {', '.join(_names(events))}, calling {call}")
        try:
            outcome = _run(call, console, recording, arriving, survival)
        finally:  # also if the reader of the records has closed the pipe
            with disk_errors(output), survival.ending():
                recording.finish(lambda: _disable(events))
        if arriving is not None and not outcome.interrupted:
            _show(console, arriving)
        if path != output and not recording.is_incomplete and not survival.is_needed:
            _convert(path, form, output)
            path = output
        _summarise(console, call, outcome, events, recording, live, path, filter_text)
        if recording.is_incomplete:
            missing = f", and {output} was not made: `fprobe report {path}` shows the others" if path != output else ""
            raise disk_failure(path, f"records are missing{missing}")
        conclude_events(outcome, events.values())


def _convert(path: str, form: str, output: str) -> None:
    """Make the file of the finished trace.dat, which is removed. Raises Failure; the trace.dat is kept then."""
    from fprobe.cli.report import write
    from fprobe.export.trace_dat_reader import Trace

    try:
        write(Trace(path), form, output)
    except Failure as failure:
        raise Failure(
            f"{failure.message}; the records are in {path}, which `fprobe report` reads", failure.exit_code
        ) from None
    Path(path).unlink()


def _make_space(size_kb: int | None) -> None:
    """Make the pool of pages large enough for some threads with buffers of this size, unless the environment says its size."""
    from ftrace.ring_buffer import backing

    if size_kb is not None:
        wanted = min(max(backing.DEFAULT_POOL_KB, 4 * size_kb), backing.MAX_POOL_KB)
        os.environ.setdefault(backing.POOL, str(wanted))


def _disable(events: dict[str, Event]) -> None:
    for each in events.values():
        each.disable()


def _by_buffer(definitions: Sequence[str], buffers: Sequence[str]) -> dict[str, list[str]]:
    """Definitions by the name of the instance that precedes them on the command line; empty for the top level."""
    found: dict[str, list[str]] = {}
    name, left, names = "", iter(definitions), iter(buffers)
    for option in click.get_current_context().meta[_ORDER]:
        if option == "buffers":
            name = _checked_name(next(names))
        else:
            found.setdefault(name, []).append(next(left))
    unused = [each for each in buffers if each not in found]
    if unused:
        raise click.UsageError(f"no event follows -B {unused[0]}; give one: -B {unused[0]} -e DEFINITION")
    return {"": found.pop("", []), **found}


def _checked_name(name: str) -> str:
    if not name or "/" in name or name in (".", ".."):
        raise click.BadParameter(f"{name!r} is not the name of an instance; give one without '/'", param_hint="-B")
    return name


@contextmanager
def _attached(
    groups: dict[str, list[str]], filter_text: str | None, triggers: Sequence[str], survival: Survival
) -> Iterator[dict[str, Event]]:
    """The events by instance, defined and enabled; trace_printk of the program records beside those of the top level.

    They keep their records at the end if the parent finishes the file. Raises Failure with a caret under the error.
    """
    from fprobe.tracefs import tracefs

    with ExitStack() as stack:
        events = {
            name: stack.enter_context(attached(definitions, filter_text, triggers))
            for name, definitions in groups.items()
            if definitions
        }
        if "" in events:  # otherwise the file has the real top level, which records it already
            tracefs.write(f"{events[''].instance}/options/trace_printk_dest", "1")
        try:
            yield events
        finally:
            if survival.is_needed:
                survival.keep(stack.pop_all())


def _recording(
    path: str, events: dict[str, Event], arriving: Arriving | None, compression: str, survival: Survival
) -> Recording:
    from fprobe.cli.failure import Failure
    from fprobe.cli.surviving import NOT_TO_STANDARD_OUTPUT
    from fprobe.export.recording import Recording

    if path == "-":
        raise Failure(NOT_TO_STANDARD_OUTPUT)
    arrays = _arrays(events)
    return Recording(path, arrays.pop(""), arriving, arrays, compression, survival.stream)


def _arrays(events: dict[str, Event]) -> dict[str, TraceArray]:
    """The trace arrays of a recording: the top level, which may have no event, and then the instances."""
    from ftrace.tracing.instances.trace_array import global_trace

    return {"": global_trace(), **{name: event.array for name, event in events.items()}}


def _names(events: dict[str, Event]) -> list[str]:
    """The events, with the instance in front if it is not the top level; calls are only counted."""
    from fprobe.cli.console import count
    from fprobe.cli.recorded_calls import GROUP

    found = [(name, each) for name, event in events.items() for each in event.formats]
    calls = sum(each.group == GROUP for _, each in found) // 2
    named = [f"{name}:{each.name}" if name else each.name for name, each in found if each.group != GROUP]
    return [*named, *[f"the calls of {count(calls, 'function')}"] * bool(calls)]


def _run(
    call: ProgramCall, console: Console, recording: Recording, arriving: Arriving | None, survival: Survival
) -> Outcome:
    """Make the call while the records are written, and shown if they are wanted, up to the end of the parent."""
    from fprobe.cli.console import progress_line
    from fprobe.cli.running import run

    if arriving is not None:
        return run(call, lambda: survival.poll(lambda: _drain_and_show(console, recording, arriving)))
    with progress_line(lambda: recording.progress):
        return run(call, lambda: survival.poll(recording.drain))


def _arriving(events: dict[str, Event]) -> Arriving:
    from fprobe.export.formats import parse_format
    from fprobe.export.recording import Arriving
    from fprobe.tracefs import tracefs

    printed = [
        parse_format("ftrace", tracefs.read(f"events/ftrace/{name}/format")) for name in ("bprint", "bputs", "print")
    ]
    defined = [each for event in events.values() for each in event.formats]
    return Arriving(_arrays(events), {each.id: each for each in [*printed, *defined]})


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
    console: Console,
    call: ProgramCall,
    outcome: Outcome,
    events: dict[str, Event],
    recording: Recording,
    live: bool,
    path: str,
    filter_text: str | None,
) -> None:
    from fprobe.cli.conclusion import print_outcome
    from fprobe.cli.console import count

    print_outcome(console, call, outcome)
    hits, missed = _counts(events)
    unpassed = f"; none passed {filter_text!r}" if filter_text and hits and not recording.file.pages else ""
    console.note(f"{count(hits, 'hit')}, {count(missed, 'miss')}{unpassed}")
    console.note(f"{path}: {recording.text}")
    document = _document(call, outcome, events, recording, path)
    if live:
        console.object({"type": "summary", **document})
    else:
        console.document(document)
    console.flush()


def _document(
    call: ProgramCall, outcome: Outcome, events: dict[str, Event], recording: Recording, path: str
) -> dict[str, Any]:
    from fprobe.cli.conclusion import absent_objects, ending_with_error, outcome_object

    hits, missed = _counts(events)
    instances = {name: [f"{each.group}/{each.name}" for each in event.formats] for name, event in events.items()}
    found = {
        "events": [name for names in instances.values() for name in names],
        "instances": instances,
        "hits": hits,
        "missed": missed,
        "lost": recording.lost,
        "absent": absent_objects(events.values()),
        "file": path,
        "disk_full": recording.failure is not None,
    }
    return outcome_object(call, outcome) | found | ending_with_error(outcome)


def _counts(events: dict[str, Event]) -> tuple[int, int]:
    """Hits and misses."""
    return sum(each.hits for each in events.values()), sum(each.missed for each in events.values())
