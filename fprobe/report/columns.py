"""Columns of tables: on a narrow terminal some give way to the names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_CUT = "…"


def fitting(
    columns: Mapping[str, int], narrower: Iterable[Mapping[str, int]], names: Iterable[str], width: int
) -> dict[str, int]:
    """The columns before the names, with their widths, such that the names fit, or get half of `width`.

    `narrower`: other widths that are tried one after the other; 0 is none.
    """
    columns = dict(columns)
    wanted = min(max(map(len, names), default=0), width // 2)
    for each in narrower:
        if width - _taken(columns) >= wanted:
            break
        columns |= {name: other for name, other in each.items() if name in columns}
        columns = {name: kept for name, kept in columns.items() if kept}
    return columns


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
