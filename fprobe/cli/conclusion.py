"""The end of a run: result, summary, exit code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from fprobe.cli import failure
from fprobe.cli.console import Console, count
from fprobe.cli.interrupting import INTERRUPTED, ctrl_c, end_process

if TYPE_CHECKING:
    from fprobe.attachment import Attachment
    from fprobe.cli.matching import MatchedFunctions
    from fprobe.cli.program import ProgramCall
    from fprobe.cli.running import Outcome
    from fprobe.recorded_events import Event
    from ftrace.core.probe import Counts


def summarise(
    console: Console,
    call: ProgramCall,
    outcome: Outcome,
    match: MatchedFunctions,
    probe: Attachment[Any],
    remarks: Sequence[str] = (),
    *,
    as_objects: bool = True,
) -> None:
    """Print the result and the summary; with --json, an object for each if `as_objects`."""
    print_outcome(console, call, outcome)
    for line in summary_lines(match, probe, remarks, everything=console.verbosity > 0):
        console.note(line)
    if as_objects:
        if outcome.returned:
            console.object({"type": "result", "call": str(call), "result": outcome.result})
        console.object({"type": "summary", **summary_object(outcome, match, probe)})
    console.flush()


def print_outcome(console: Console, call: ProgramCall, outcome: Outcome) -> None:
    """Print how the call ended, with which an interruption is reported."""
    ctrl_c.reported = True
    console.line(outcome_line(call, outcome))


def outcome_line(call: ProgramCall, outcome: Outcome) -> str:
    """`main(10) = 42`, or how else the call ended."""
    from fprobe.calls.values import value_text
    from sandbox.abi.signatures import Void

    if outcome.interrupted:
        return f"{call} interrupted"
    if outcome.exited is not None:
        return f"{call} called exit({outcome.exited})"
    if outcome.error is not None:
        return f"{call} failed"
    kind = call.function.signature.result
    return f"{call}" if isinstance(kind, Void) else f"{call} = {value_text(outcome.result, kind)}"


def summary_lines(
    match: MatchedFunctions, probe: Attachment[Any], remarks: Sequence[str], *, everything: bool
) -> list[str]:
    """The lines of the summary: functions, skipped functions, hits, handler errors, remarks."""
    lines = [functions_line(match), *skipped_lines(match, everything=everything)]
    lines.append(hits_line(probe.counts))
    errors = errors_line(probe.fp.errors.count, probe.fp.errors.first)
    return [*lines, *([errors] if errors else []), *remarks]


def summary_object(outcome: Outcome, match: MatchedFunctions, probe: Attachment[Any]) -> dict[str, Any]:
    """The summary for JSON."""
    counts = probe.counts
    skipped = [skipped._asdict() for skipped in match.skipped]
    numbers = {"matched": match.matched, "attached": len(match.sites), "skipped": skipped}
    missed = {"hits": counts.hits, "missed": counts.missed, "missed_by_cause": cause_numbers(counts)}
    return (
        numbers
        | missed
        | {"handler_errors": probe.fp.errors.count, "interrupted": outcome.interrupted}
        | ending(outcome)
    )


def outcome_object(call: ProgramCall, outcome: Outcome) -> dict[str, Any]:
    """For JSON: the call, its result if it returned, and whether Ctrl-C ended it."""
    result = outcome.result if outcome.returned else None
    return {"call": str(call), "result": result, "interrupted": outcome.interrupted}


def ending(outcome: Outcome) -> dict[str, Any]:
    """For JSON: the status that the program passed to `exit`, if it called that."""
    return {} if outcome.exited is None else {"exited": outcome.exited}


def ending_with_error(outcome: Outcome) -> dict[str, Any]:
    """The same, and the error if the program failed."""
    return ending(outcome) | ({"error": failure.of_call(outcome.error).as_object()} if outcome.error else {})


def conclude(outcome: Outcome) -> None:
    """Raise Failure if the program failed; exit after Ctrl-C or if the program called `exit`; otherwise return."""
    if outcome.exited is not None:
        end_process(failure.FAILED if outcome.exited else 0)
    if outcome.interrupted:
        end_process(INTERRUPTED)
    if outcome.error is not None:
        raise failure.of_call(outcome.error)


def conclude_events(outcome: Outcome, events: Iterable[Event]) -> None:
    """Like `conclude`, and exit with 1 if none of the events could be hit; those that could not are named on stderr."""
    events = list(events)
    for sentence in [sentence for event in events for sentence in event.absences()]:
        click.echo(f"fprobe: {sentence}", err=True)
    conclude(outcome)
    if not any(event.can_be_hit for event in events):
        raise click.exceptions.Exit(failure.FAILED)


def absent_objects(events: Iterable[Event]) -> list[dict[str, str]]:
    """For JSON: the probes that could not be hit, with the reason."""
    probes = [probe for event in events for probe in event.probes]
    return [{"event": probe.name, "reason": why} for probe in probes if (why := probe.absence)]


_CAUSES = {
    "missed_recursion": "recursion",
    "missed_nodes": "no return node",
    "missed_busy": "a kprobe was running",
    "missed_depth": "shadow stack full",
    "missed_context": "in a signal handler",
    "missed_interpreter": "in a sub-interpreter, or after a longjmp out of a Python handler",
    "missed_task": "no task record",
}
_NAMES_SHOWN = 8


def causes(counts: Counts) -> dict[str, int]:
    """Cause of misses -> number, for causes that occurred."""
    found = {_CAUSES.get(name, name): value for name, value in counts._asdict().items()}
    return {cause: number for cause, number in found.items() if number and cause != "hits"}


def cause_numbers(counts: Counts) -> dict[str, int]:
    """The same for JSON, under the names of `fprobe.Counts` without `missed_`."""
    found = ((name.removeprefix("missed_"), number) for name, number in counts._asdict().items())
    return {name: number for name, number in found if number and name != "hits"}


def functions_line(match: MatchedFunctions) -> str:
    """`12 functions matched: 10 attached, 2 skipped`."""
    return f"{count(match.matched, 'function')} matched: {len(match.sites):,} attached, {len(match.skipped):,} skipped"


def skipped_lines(match: MatchedFunctions, *, everything: bool = False) -> Iterator[str]:
    """For each reason, a line with the skipped functions."""
    by_reason = sorted(match.skipped, key=attrgetter("reason", "name"))
    for reason, group in groupby(by_reason, key=attrgetter("reason")):
        names = [skipped.name for skipped in group]
        shown = names if everything else names[:_NAMES_SHOWN]
        more = f", and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
        yield f"  skipped, {reason}: {', '.join(shown)}{more}"


def hits_line(counts: Counts) -> str:
    """`96 hits, 0 misses`, with the causes of misses."""
    found = ", ".join(f"{cause} {number:,}" for cause, number in causes(counts).items())
    return f"{count(counts.hits, 'hit')}, {count(counts.missed, 'miss')}" + (f" ({found})" if found else "")


def errors_line(number: int, first: BaseException | None) -> str:
    """The number of handler errors, and the first one; '' if there were none."""
    return f"{count(number, 'handler error')}, the first: {type(first).__name__}: {first}" if number else ""
