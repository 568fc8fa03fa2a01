"""The text of calls: trees and folded stacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from fprobe.report.durations import duration
from fprobe.report.nesting import Call
from fprobe.report.style import Plain, Style
from sandbox.process.printable import printable

_INDENT = "  "
_MOST = 200
"""Calls around a line that indent it; a recursion of a hundred thousand calls would be gigabytes of spaces."""
HEADER = "#  DURATION       TID   FUNCTION"
"""The line above a tree of calls."""
NOT_SEEN = " /* return not seen */"
"""The remark on a call that has ended by an exception or a longjmp, or whose return is among lost records."""


class Nested(Protocol):
    """A call in a tree. `depth`: number of callers in the tree."""

    @property
    def thread(self) -> int: ...
    @property
    def depth(self) -> int: ...


class Words(Protocol):
    """The texts of calls."""

    def entry(self, call: Any) -> str:
        """The function and its arguments."""

    def name(self, call: Any) -> str:
        """The function's name alone."""

    def result(self, call: Any) -> tuple[str, str]:
        """The result, '' if there is none to show, and a remark after it."""


class CallTree:
    """Turns the entries and returns of calls into lines. A call without inner calls takes one line; any other has an opening
    line and a closing line.

    The line of the newest call waits for the next step, or for `flush`.
    """

    def __init__(self, style: Style | None = None) -> None:
        self._style = style or Plain()
        self._pending: Nested | None = None
        self._text = ""

    def lines(self, steps: Iterable[tuple[Call[Any], bool]], words: Words, rate: float = 1.0) -> Iterator[str]:
        """The lines that are complete now. `rate`: units of the events' time in a nanosecond."""
        for call, begins in steps:
            if begins:
                yield from self.entry(call, words.entry(call))
            elif call.leave is None:
                yield from self.exit(call, "", words.name(call), "", self._style.bad(NOT_SEEN))
            else:
                yield from self.exit(call, duration(call.duration / rate), words.name(call), *words.result(call))

    def entry(self, call: Nested, text: str) -> Iterator[str]:
        """The call has begun. `text`: the function and its arguments."""
        yield from self.flush()
        self._pending, self._text = call, text

    def exit(self, call: Nested, duration: str, name: str, result: str, remark: str = "") -> Iterator[str]:
        """The call has ended. `result`: '' if there is none to show; `remark`: text after it."""
        shown = f" = {result}" if result else ""
        if call is self._pending:
            self._pending = None
            text = f"{self._text}{shown}{remark};"
        else:
            yield from self.flush()
            text = f"}}{shown}{self._style.dim(f' /* {name} */')}{remark}"
        yield self._line(duration, call.thread, call.depth, text)

    def instant(self, thread: int, depth: int, text: str) -> Iterator[str]:
        """Something that happened inside `depth` calls of a thread."""
        yield from self.flush()
        yield self._line("", thread, depth, f"/* {text} */")

    def flush(self) -> Iterator[str]:
        """The opening line of the newest call, if it waits: the call has inner calls, or another line follows."""
        if self._pending is not None:
            call, self._pending = self._pending, None
            yield self._line("", call.thread, call.depth, f"{self._text} {{")

    def _line(self, duration: str, thread: int, depth: int, text: str) -> str:
        return f" {self._style.dim(f'{duration:>10} [{thread:>7}]')} | {indentation(depth)}{text}"


def indentation(depth: int) -> str:
    """What stands before the text of a call inside `depth` others. If these are many, their number stands for some."""
    return _INDENT * depth if depth <= _MOST else f"{_INDENT * _MOST}[{depth}] "


def folded_stack(frames: Iterable[str]) -> str:
    """A stack as one word of such a line. `frames`: outermost first; a semicolon in a name becomes a colon."""
    return ";".join(printable(frame).replace(";", ":") for frame in frames)
