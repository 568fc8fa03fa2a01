"""The text of calls: trees, folded stacks, durations in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

_INDENT = "  "


class Nested(Protocol):
    """A call in a tree. `depth`: number of callers in the tree."""

    thread: int
    depth: int


class CallTree:
    """Turns the entries and returns of calls into lines. A call without inner calls takes one line; any other has an opening
    line and a closing line.

    The line of the newest call waits for the next step, or for `flush`. `margin`: the start of each line; `dim`: makes text
    less bright.
    """

    def __init__(self, margin: str = " ", dim: Callable[[str], str] = str) -> None:
        self._margin, self._dim = margin, dim
        self._pending: Nested | None = None
        self._text = ""

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
            text = f"}}{shown}{self._dim(f' /* {name} */')}{remark}"
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
        return f"{self._margin}{self._dim(f'{duration:>10} [{thread:>7}]')} | {_INDENT * depth}{text}"


def folded_stack(frames: Iterable[str]) -> str:
    """A stack as one word of such a line. `frames`: outermost first; a semicolon in a name becomes a colon."""
    return ";".join(frame.replace(";", ":") for frame in frames)


HEADER = "#  DURATION       TID   FUNCTION"
"""The line above a tree of calls."""
_UNITS = ((1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s "))


def duration_text(nanoseconds: float) -> str:
    """A duration in 10 characters: `  1.234 us`; longer from 1000 s."""
    for scale, unit in _UNITS:
        if nanoseconds < scale * 1000 or unit == "s ":
            break
    return f"{nanoseconds / scale:7.3f} {unit}"
