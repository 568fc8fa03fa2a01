"""What `fprobe top` shows of its rows, and the keys that change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WIDTHS = {"CALLS": 10, "CALLS/S": 8, "TOTAL": 8, "SELF": 8, "AVERAGE": 8, "P50": 8, "P99": 8, "GRAPH": 16}
"""The columns before the name, with their widths."""
SORT_KEYS = ("calls", "rate", "total", "self", "average", "p50", "p99", "name")
"""The columns by which rows are sorted, from left to right."""
_SORTED = {"rate": "CALLS/S"}
"""What a key of --sort is called, where that is not its own name."""
_NARROW_GRAPH = 6
_GIVING_WAY = ("P50", "AVERAGE", "P99", "SELF", "CALLS/S", "TOTAL", "CALLS")
"""Which go, one after the other, after the graph."""
_LETTERS = {
    "c": "calls", "p": "rate", "t": "total", "s": "self", "a": "average", "5": "p50", "9": "p99", "n": "name",
}  # fmt: skip
_STEPS = {"<": -1, "\x1b[D": -1, "\x1bOD": -1, ">": 1, "\x1b[C": 1, "\x1bOC": 1}
"""These, and the arrows, sort by the column before or after."""
_ESCAPE, _ENTER, _BACKSPACE, _CLEAR = "\x1b", "\r\n", "\x7f\b", "\x15"
HELP = (
    "sort by: t total, s self, c calls, p calls/s, a average, 5 p50, 9 p99, n name",
    "< > next column, r reverse, / filter, Esc no filter, h no help, q quit",
)


class TopView(NamedTuple):
    """What is shown, and how. `delay`: seconds between updates; `rows`: maximum number of rows, None for as many as fit.

    `by`: function, caller or thread. `filter`: shown are rows whose text has it, in small or capital letters; `is_typing`:
    whether keys are added to it. `has_keys`: whether there are keys; `is_over`: whether one has ended it.
    """

    sort: str
    delay: float
    rows: int | None
    by: str = "function"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    has_keys: bool = False
    has_help: bool = False
    is_over: bool = False

    @property
    def narrower(self) -> Iterator[dict[str, int]]:
        """Which columns become narrower or go, the first one first. The one that rows are sorted by stays."""
        kept = _SORTED.get(self.sort, self.sort.upper())
        yield {"GRAPH": _NARROW_GRAPH}
        yield {"GRAPH": 0}
        yield from ({name: 0} for name in _GIVING_WAY if name != kept)

    def after(self, key: str) -> TopView:
        """The view after a key."""
        if self.is_typing:
            return self._typed(key)
        if key in _LETTERS:
            return self._sorted(_LETTERS[key])
        if key in _STEPS:
            return self._sorted(SORT_KEYS[(SORT_KEYS.index(self.sort) + _STEPS[key]) % len(SORT_KEYS)])
        match key:
            case "r":
                return self._replace(is_reversed=not self.is_reversed)
            case "/":
                return self._replace(is_typing=True)
            case "\x1b":
                return self._replace(filter="")
            case "h":
                return self._replace(has_help=not self.has_help)
            case "q":
                return self._replace(is_over=True)
        return self

    def _sorted(self, column: str) -> TopView:
        return self._replace(sort=column, is_reversed=self.is_reversed and column == self.sort)

    def _typed(self, key: str) -> TopView:
        if key == _ESCAPE:
            return self._replace(filter="", is_typing=False)
        if key in _ENTER:
            return self._replace(is_typing=False)
        if key in _BACKSPACE:
            return self._replace(filter=self.filter[:-1])
        if key == _CLEAR:
            return self._replace(filter="")
        return self._replace(filter=self.filter + key) if key.isprintable() else self

    def shows(self, text: str) -> bool:
        """Whether a row with this text is shown."""
        return self.filter.casefold() in text.casefold()

    @property
    def described(self) -> str:
        """The end of the table's first line: order and filter, and how to learn of the keys."""
        order = f"by {self.sort}{', reversed' if self.is_reversed else ''}"
        if self.is_typing:
            return f"{order}; filter: {self.filter}_"
        return f"{order}{f'; with {self.filter!r}' if self.filter else ''}{'; h: help' if self.has_keys else ''}"

    @property
    def help(self) -> tuple[str, ...]:
        """The lines that explain the keys, if they are wanted."""
        return HELP if self.has_help and self.has_keys else ()
