"""The summary of a run: functions, skipped functions and reasons, hits, misses by cause."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fprobe.cli.match import Match
    from ftrace.probe import Counts

_CAUSES = {
    "missed_recursion": "recursion",
    "missed_nodes": "no return node",
    "missed_busy": "a kprobe was running",
    "missed_depth": "shadow stack full",
    "missed_context": "in a signal handler",
    "missed_task": "no task record",
}
_NAMES_SHOWN = 8


def count(number: int, noun: str) -> str:
    """`1 hit`, `2 hits`, `1 miss`, `2 misses`."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def causes(counts: Counts) -> dict[str, int]:
    """Cause of misses -> number, for causes that occurred."""
    found = {_CAUSES.get(name, name): value for name, value in counts._asdict().items()}
    return {cause: number for cause, number in found.items() if number and cause != "hits"}


def functions_line(match: Match) -> str:
    """`12 functions matched: 10 attached, 2 skipped`."""
    return f"{count(match.matched, 'function')} matched: {len(match.sites):,} attached, {len(match.skipped):,} skipped"


def skipped_lines(match: Match, *, everything: bool = False) -> Iterator[str]:
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
