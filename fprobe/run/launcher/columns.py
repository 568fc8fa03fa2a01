"""The columns of `fprobe top`: on a narrow terminal some give way to the names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

WIDTHS = {"CALLS": 10, "CALLS/S": 8, "TOTAL": 8, "SELF": 8, "AVERAGE": 8, "P50": 8, "P99": 8, "GRAPH": 16}
"""The columns before the name, with their widths."""
SORT_KEYS = ("calls", "rate", "total", "self", "average", "p50", "p99", "name")
"""The columns by which rows are sorted, from left to right."""
_SORTED = {"rate": "CALLS/S"}
"""What a key of --sort is called, where that is not its own name."""
_NARROW_GRAPH = 6
_GIVING_WAY = ("P50", "AVERAGE", "P99", "SELF", "CALLS/S", "TOTAL", "CALLS")
"""Which go, one after the other, after the graph."""
_CUT = "…"


def fitting(names: Iterable[str], width: int, sort: str) -> dict[str, int]:
    """The columns with their widths, such that the names fit, or get half of `width`. That of the key `sort` stays."""
    columns = dict(WIDTHS)
    wanted = min(max(map(len, names), default=0), width // 2)
    sorted_by = _SORTED.get(sort, sort.upper())
    for narrower in _narrower(sorted_by):
        if width - _taken(columns) >= wanted:
            break
        columns.update(narrower)
        columns = {name: each for name, each in columns.items() if each}
    return columns


def _narrower(kept: str) -> Iterator[dict[str, int]]:
    yield {"GRAPH": _NARROW_GRAPH}
    yield {"GRAPH": 0}
    yield from ({name: 0} for name in _GIVING_WAY if name != kept)


def _taken(columns: Mapping[str, int]) -> int:
    return sum(width + 1 for width in columns.values())


def room(columns: Mapping[str, int], width: int) -> int:
    """What is left for names."""
    return max(width - _taken(columns), 0)


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names of at most `width` characters, cut in the middle. Different ones stay different, by a number if need be and if
    there is space for it.
    """
    taken = {name for name in names if len(name) <= width}
    made = {name: name for name in taken}
    for name in names:
        if name not in made:
            made[name] = _cut(name, width, taken)
            taken.add(made[name])
    return [made[name] for name in names]


def _cut(name: str, width: int, taken: set[str]) -> str:
    marks = ("", *(f"~{number}" for number in range(2, len(taken) + 3)))
    cuts = [_middle_cut(name, width, mark) for mark in marks if len(mark) < width]
    return next((each for each in cuts if each not in taken), name[:width])


def _middle_cut(name: str, width: int, mark: str) -> str:
    left = width - len(_CUT) - len(mark)
    head = left // 2
    return name[:head] + _CUT + name[len(name) - (left - head) :] + mark
