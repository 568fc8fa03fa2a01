"""The stacks of a process, and their sums by line of Python, as text and for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fprobe.calls.stack_memory import PythonPlace, StackCounts
from fprobe.report.durations import duration
from fprobe.run.launcher.flame import stacks, value_of
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.report_selection import ReportSelection

_MOST = 10
"""Stacks shown as text."""
_UNDER_CALLS = 29


@dataclass
class LineRow:
    """The calls of a function from one line of Python. `place`: None if no Python function is a caller."""

    function: str
    place: PythonPlace | None
    calls: int = 0
    value: int = 0


def line_rows(process: Process, rate: float, selection: ReportSelection) -> list[LineRow]:
    """A row for each function and innermost line of Python, the largest values first."""
    found: dict[tuple[int | PythonPlace, PythonPlace | None], LineRow] = {}
    for stack in process.stacks:
        function, place = stack.frames[-1], _innermost(stack)
        assert isinstance(function, int)
        row = found.setdefault((function, place), LineRow(str(process.names.function(function)), place))
        row.calls += stack.calls
        row.value += value_of(stack, rate, selection)
    return sorted(found.values(), key=lambda row: (-row.value, -row.calls, row.function, str(row.place)))


def _innermost(stack: StackCounts) -> PythonPlace | None:
    return next((frame for frame in reversed(stack.frames) if isinstance(frame, PythonPlace)), None)


def stack_lines(process: Process, rate: float, selection: ReportSelection) -> Iterator[str]:
    """The table by line, if values are asked for; and the stacks with the largest values, innermost frame first."""
    unit = selection.stack_unit
    if unit and process.stacks:
        yield from _table(line_rows(process, rate, selection), selection)
    found = sorted(stacks([process], rate, selection), key=lambda stack: (-stack.value, -stack.calls))
    for stack in found[:_MOST]:
        shown = _shown(stack.value, unit) if unit else duration(stack.value)
        yield f"{shown:>10} {stack.calls:10,} calls  {stack.frames[-1]}"
        yield from (f"{'':{_UNDER_CALLS}}<- {frame}" for frame in reversed(stack.frames[:-1]))
    if len(found) > _MOST:
        yield f"# {len(found) - _MOST:,} more stacks; --format folded has every one"
    if process.stacks_lost:
        yield f"# {process.stacks_lost:,} calls are not in these stacks: there was no place for them"
    if process.stacks_cut:
        yield f"# {process.stacks_cut:,} calls have more than 4,096 frames: the outermost are left out"


def _shown(value: int, unit: str) -> str:
    return "" if unit == "calls" else f"{value:,} {unit}"


def _table(rows: list[LineRow], selection: ReportSelection) -> Iterator[str]:
    """The rows by line. `--top`, `--min-hits` choose among them."""
    order, unit = selection.order, selection.stack_unit
    kept = [row for row in rows if row.calls >= order.min_hits]
    shown = kept[: order.most]
    heads = ["CALLS"] if unit == "calls" else [unit.upper(), "CALLS"]
    yield f"# {' '.join(f'{head:>14}' for head in heads)}  FUNCTION, LINE"
    for row in shown:
        numbers = [row.calls] if unit == "calls" else [row.value, row.calls]
        yield f"  {' '.join(f'{number:>14,}' for number in numbers)}  {row.function}{f', {row.place}' if row.place else ''}"
    if len(rows) > len(shown):
        yield f"# {order.left_out(len(rows) - len(shown))}"


def stack_objects(process: Process, rate: float, selection: ReportSelection) -> dict[str, Any]:
    """The stacks for JSON, the largest values first, frames outermost first; and the rows by line, if values are asked for."""
    found: dict[str, Any] = {
        "stacks": [
            {"frames": stack.frames, "hits": stack.calls, **_value(stack.value, selection)}
            for stack in sorted(stacks([process], rate, selection), key=lambda stack: -stack.value)
        ],
        "stacks_lost": process.stacks_lost,
        "stacks_cut": process.stacks_cut,
    }
    if selection.stack_values is not None:
        found["lines"] = [
            {
                "function": row.function,
                "python": row.place.name if row.place else None,
                "file": row.place.filename if row.place else None,
                "line": row.place.line if row.place else None,
                "hits": row.calls,
                **_value(row.value, selection),
            }
            for row in line_rows(process, rate, selection)
        ]
    return found


def _value(value: int, selection: ReportSelection) -> dict[str, Any]:
    """`self_ns`: excluding recorded calls inside; `sum`: of the argument."""
    if selection.stack_values is None:
        return {"self_ns": value}
    return {"sum": {selection.stack_unit: value}} if selection.stack_values.sum else {}
