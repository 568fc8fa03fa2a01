"""Results as a table or as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.bars import judge
from benchmarks.measure import Result, Row

_HEAD = ("row", "added", "min", "max", "baseline", "hits", "missed", "lost")


Absent = Mapping[str, str]
"""Why rows were not measured, by their names."""


def json_lines(results: Sequence[Result], absent: Absent) -> Iterator[str]:
    """One object per row."""
    for result in results:
        yield json.dumps(result.fields())
    for name, why in absent.items():
        yield json.dumps({"name": name, "skipped": why})


def page(machine: str, rows: Sequence[Row], results: Sequence[Result], absent: Absent) -> Iterator[str]:
    """The machine, then the table, then what is not in it."""
    yield from (machine, "")
    yield from table([row for row in rows if row.name not in absent], results)
    for name, why in absent.items():
        yield f"{name}: skipped: {why}"


def table(rows: Sequence[Row], results: Sequence[Result]) -> Iterator[str]:
    """Lines of text: the figures, in nanoseconds per call, then the rows' meanings and bars."""
    cells = [_HEAD, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    for row in cells:
        first, *rest = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join([f"{row[0]:<{len(first)}}", *rest])
    yield ""
    yield from _remarks(rows, results, widths[0])


def _cells(result: Result) -> tuple[str, ...]:
    times = (result.added_ns, result.min_ns, result.max_ns, result.baseline_ns)
    counts = (result.hits, result.missed, result.lost)
    return (result.name, *(f"{time:,.2f}" for time in times), *(f"{count:,}" for count in counts))


def _remarks(rows: Sequence[Row], results: Sequence[Result], width: int) -> Iterator[str]:
    by_name = {result.name: result for result in results}
    for row in rows:
        extra = "".join(f"; {key} {value:.3f}" for key, value in by_name[row.name].extra.items())
        yield f"{row.name:<{width}}  {row.about}{extra}"
        for verdict in judge(row.name, by_name):
            yield f"{'':<{width}}  bar {verdict}"
