"""`fprobe hist`: histograms of hits by the fields of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fprobe.cli import candidates
from fprobe.cli.attaching import attached_to, exit_code, refuse_with_pid
from fprobe.cli.console import Console
from fprobe.cli.failure import Failure
from fprobe.cli.options import (
    CallingCommand,
    ProgramTarget,
    attached,
    call_option,
    call_words,
    definition_option,
    file_options,
    filter_option,
    output_options,
    program_options,
)
from sandbox.process.bars import barred
from sandbox.process.near import did_you_mean

if TYPE_CHECKING:
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.recorded_events import Event
    from fprobe.run.launcher.attached import Targets
    from fprobe.run.launcher.process import Process

_EPILOG = """\b
Examples:
  fprobe hist -e 'p:reads vfs_read count=%dx:u64' keys=count
  fprobe hist -e 'p:reads vfs_read count=%dx:u64' keys=count.log2 \\
      sort=hitcount.descending
  fprobe hist -p 4711 -e 'p:sizes libz:adler32_z size=%dx:u64' keys=size.log2
  fprobe hist -e 'r:results vfs_read size=$retval:s64' keys=common_pid \\
      vals=size --filter 'size > 0'

The words are the parameters of the kernel's hist trigger: keys=, vals=, sort=, size= and others. Counting is native.
"""
_PARAMETERS = ("keys", "key", "vals", "val", "values", "sort", "size", "name", "clock")
_COUNT = re.compile(r"hitcount:\s*(\d+)")
_TOTALS = re.compile(r"^Totals:\n(?:    .*\n?)*", re.MULTILINE)


class Entry(NamedTuple):
    """An entry of a histogram: its text and its hit count."""

    text: str
    hits: int


@click.command("hist", cls=CallingCommand, epilog=_EPILOG, short_help="Count hits by their fields.")
@click.argument(
    "parameters", metavar="keys=FIELD [PARAMETER]...", nargs=-1, required=True,
    shell_complete=candidates.hist_parameters,
)  # fmt: skip
@definition_option()
@filter_option
@call_option
@program_options
@output_options
@file_options("text", "json", "ndjson", "csv")
def hist_command(
    parameters: tuple[str, ...],
    definitions: tuple[str, ...],
    filter_text: str | None,
    target: ProgramTarget,
    console: Console,
) -> None:
    """Run the program with a histogram on the events of DEFINITION, and show it.

    With --json: one object with call, result, and the entries of each event.
    """
    _check_variables(":".join(parameters).split(":"))
    trigger = f"hist:{':'.join(parameters)}" + (f" if {filter_text}" if filter_text else "")
    if target.running is not None:
        _hist_running(target.running, definitions, trigger, console)
    from fprobe.cli import program
    from fprobe.cli.conclusion import conclude_events
    from fprobe.cli.interrupting import ctrl_c
    from fprobe.cli.running import run

    module = program.load(target)
    call = program.prepare_call(module, call_words(), target)
    ctrl_c.hold_for_run()
    with console.alone(), attached(definitions, None, [trigger]) as events:
        console.note(f"# counting {', '.join(each.name for each in events.formats)}, calling {call}")
        outcome = run(call)
        events.disable()
        _show(console, call, outcome, events, filter_text)
        conclude_events(outcome, [events])


def _check_variables(parts: list[str]) -> None:
    """Raise Failure for a variable that nothing uses: in the kernel's language any other name before `=` is one, also a typo."""
    for part in parts:
        name, equals, _ = part.partition("=")
        if equals and name not in _PARAMETERS and not any(f"${name}" in other for other in parts):
            near = did_you_mean(name, _PARAMETERS) or f"; they are {', '.join(f'{each}=' for each in _PARAMETERS)}"
            raise Failure(f"{part}: no parameter is called {name}{near}")


def _hist_running(targets: Targets, definitions: tuple[str, ...], trigger: str, console: Console) -> None:
    """`fprobe hist -p`. Ends this process."""
    from fprobe.cli.interrupting import end_process
    from fprobe.cli.run import check_events
    from fprobe.run.session import Settings

    refuse_with_pid(call=call_words())
    check_events(definitions)
    with attached_to(targets, Settings(events=definitions, triggers=(trigger,))) as processes:
        processes.wait()
    results = processes.results()
    found = results.processes
    for process in found:
        _show_running(console, process, results.told)
    objects = [_process_object(process) for process in found]
    rows = [{"pid": each["pid"], **row} for each in objects for row in _rows(each["histograms"])]
    console.document({"interrupted": results.is_interrupted, "processes": objects}, rows)
    console.flush()
    end_process(exit_code(results))


def _show_running(console: Console, process: Process, told: frozenset[str]) -> None:
    console.note(f"# process {process.pid}")
    for text in (*process.errors, *process.waiting.values(), *process.remarks):
        if text not in told:
            console.line(f"# {text}")
    for name, text in process.histograms.items():
        console.line(console.bold(f"{name.rpartition('/')[2]}:"))
        for line in bars(list(entries_of(text)), console.width):
            console.line(line)
        console.note(_totals(text))


def _process_object(process: Process) -> dict[str, Any]:
    shown = {name.rpartition("/")[2]: [*map(_object, entries_of(text))] for name, text in process.histograms.items()}
    return {"pid": process.pid, "errors": process.errors, "not_found": process.not_found, "histograms": shown}


def _totals(text: str) -> str:
    totals = _TOTALS.search(text)
    return " ".join(totals[0].split()).replace("Totals: ", "") if totals else ""


def _show(console: Console, call: ProgramCall, outcome: Outcome, events: Event, filter_text: str | None) -> None:
    from fprobe.cli.conclusion import absent_objects, ending, outcome_object, print_outcome
    from fprobe.cli.console import count
    from fprobe.tracefs import tracefs
    from ftrace.tracing.events.hist.text import escaped_texts

    shown = {}
    for event in events.formats:
        with escaped_texts():
            text = tracefs.read(f"{events.instance}/events/{event.group}/{event.name}/hist")
        entries = shown[event.name] = list(entries_of(text))
        console.line(console.bold(f"{event.name}:"))
        for line in bars(entries, console.width):
            console.line(line)
        console.note(_totals(text))
    print_outcome(console, call, outcome)
    is_empty = filter_text and events.hits and not any(shown.values())
    unpassed = f"; none passed {filter_text!r}" if is_empty else ""
    console.note(f"{count(events.hits, 'hit')}, {count(events.missed, 'miss')}{unpassed}")
    result = outcome_object(call, outcome) | {"absent": absent_objects([events])}
    histograms = {name: list(map(_object, found)) for name, found in shown.items()}
    console.document(result | {"histograms": histograms} | ending(outcome), _rows(histograms))


def entries_of(text: str) -> Iterator[Entry]:
    """The entries of a `hist` file. The lines of a stack trace are the beginning of an entry."""
    entry = ""
    for line in text.splitlines():
        if entry or line.startswith("{"):
            entry = f"{entry}\n{line}" if entry else line
            if found := _COUNT.search(line):
                yield Entry(entry, int(found[1]))
                entry = ""


def bars(entries: list[Entry], columns: int | None) -> Iterator[str]:
    """A line for each entry, with a bar as long as its share of the largest. `columns`: those of the terminal."""
    width = max((len(entry.text.splitlines()[-1]) for entry in entries), default=0)
    largest = max((entry.hits for entry in entries), default=1)
    for entry in entries:
        *before, last = entry.text.splitlines()
        yield from before
        yield barred(f"{last:<{width}}", entry.hits, largest, columns, end="")


def _rows(histograms: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [{"event": name, **entry} for name, entries in histograms.items() for entry in entries]


def _object(entry: Entry) -> dict[str, Any]:
    key, _, values = entry.text.rpartition("}")
    numbers = {name: int(number) for name, number in re.findall(r"(\w+):\s*(-?\d+)", values)}
    return {"key": " ".join(key.lstrip("{ ").split()), **numbers}
