"""`fprobe graph`: the call graph of the tracer function_graph."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from fprobe.cli import candidates
from fprobe.cli.console import Console
from fprobe.cli.options import CallingCommand, ProgramTarget, call_option, call_words, output_options, program_options
from sandbox.process.integers import INT_MAX

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.cli.surviving import Survival
    from ftrace.tracing.files.nodes import Handle

_EPILOG = """\b
Examples:
  fprobe graph
  fprobe graph 'vfs_*' --depth 2
  fprobe graph --inside ksys_read
  fprobe graph 'vfs_*' -o calls.dat && fprobe report calls.dat --format tree
  fprobe graph main libc:malloc libc:free --program prog.c
  fprobe graph --tracer function 'func*' --program prog.ll --call main 3

--option sets options of the tracer in trace_options: funcgraph-tail, nofuncgraph-cpu, funcgraph-retval and others.
"""
_CHUNK = 1 << 16


@click.command("graph", cls=CallingCommand, epilog=_EPILOG, short_help="Show the call graph.")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1, shell_complete=candidates.functions)
@click.option(
    "--inside", metavar="FUNC", multiple=True, shell_complete=candidates.functions, help="Show only calls inside FUNC."
)
@click.option("--depth", type=click.IntRange(1, INT_MAX), metavar="N", help="Show only N levels.")
@click.option(
    "--option", "trace_options", metavar="NAME", multiple=True, help="An option of trace_options; repeatable."
)
@click.option(
    "--tracer", type=click.Choice(["function_graph", "function"]), default="function_graph", show_default=True,
    help="Which tracer.",
)  # fmt: skip
@click.option(
    "--output", "-o", metavar="FILE", shell_complete=candidates.files,
    help="Write a trace.dat instead, for fprobe report --format tree, folded or perfetto.",
)  # fmt: skip
@call_option
@program_options
@output_options
def graph_command(
    patterns: tuple[str, ...],
    inside: tuple[str, ...],
    depth: int | None,
    trace_options: tuple[str, ...],
    tracer: str,
    output: str | None,
    target: ProgramTarget,
    console: Console,
) -> None:
    """Run the program under the tracer function_graph, on the functions that match PATTERN (default: all)."""
    from fprobe.cli import filters, matching, program
    from fprobe.cli.failure import input_errors
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.tracefs import tracefs

    survival = None
    if output is not None:
        from fprobe.cli.surviving import survive

        with input_errors():
            survival = survive()
    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    matching.check_each_matches(module, (*patterns, *inside))
    with input_errors():
        filters.set_filter(patterns or ("*",))
        filters.show_only_inside(inside)
        filters.leave_out_this_thread()
        if depth:
            tracefs.write("max_graph_depth", f"{depth}\n")
        tracefs.write("current_tracer", tracer)
        for option in trace_options:
            tracefs.write("trace_options", option)
    ctrl_c.hold_for_run()
    with console.alone():
        if output is not None and survival is not None:
            _record(console, call, output, survival)
            return
        with tracefs.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK) as pipe:
            _run(console, call, pipe)


def _record(console: Console, call: ProgramCall, output: str, survival: Survival) -> None:
    """Run the program, and write the records to a file. Raises Failure if the file cannot be written."""
    from fprobe.cli.conclusion import conclude
    from fprobe.cli.failure import input_errors
    from fprobe.cli.running import run
    from fprobe.cli.surviving import disk_errors, disk_failure
    from fprobe.export.recording import Recording
    from fprobe.tracefs import tracefs

    with input_errors(), disk_errors(output):
        recording = Recording(output)
        survival.begin(recording)
    console.note(f"# recording, calling {call}")
    outcome = run(call, lambda: survival.poll(recording.drain))
    with disk_errors(output), survival.ending():
        recording.finish(lambda: tracefs.write("tracing_on", "0"))
    _summarise(console, call, outcome, recording.lost)
    console.note(f"{output}: {recording.text}")
    if recording.is_incomplete:
        raise disk_failure(output, "records are missing")
    conclude(outcome)


def _run(console: Console, call: ProgramCall, pipe: Handle) -> None:
    from fprobe.cli.conclusion import conclude
    from fprobe.cli.running import run
    from fprobe.tracefs import tracefs
    from ftrace.tracing.instances.trace_array import global_trace

    console.note(f"# calling {call}")
    outcome = run(call, lambda: _show(console, pipe))
    tracefs.write("tracing_on", "0")
    while _show(console, pipe):
        pass
    _summarise(console, call, outcome, global_trace().buffer.lost())
    conclude(outcome)


def _show(console: Console, pipe: Handle) -> bool:
    """Print new records. Returns whether there were any."""
    try:
        data = pipe.read(_CHUNK)
    except BlockingIOError:
        return False
    for line in data.decode("utf-8", "surrogateescape").splitlines():
        console.line(line)
        console.object({"type": "line", "text": line})
    console.flush()
    return True


def _summarise(console: Console, call: ProgramCall, outcome: Outcome, lost: int) -> None:
    from fprobe.cli.conclusion import ending_with_error, outcome_object, print_outcome

    print_outcome(console, call, outcome)
    console.note(f"{lost:,} records lost" if lost else "nothing lost")
    console.object({"type": "summary", **outcome_object(call, outcome), "lost": lost, **ending_with_error(outcome)})
    console.flush()
