"""Calls as a tree, like those of uftrace and ftrace's function_graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fprobe.cli.calls import Call
from fprobe.cli.console import Console
from fprobe.cli.views import View, entry_text, result_text
from fprobe.export.durations import duration_text

_INDENT = "  "


class Tree:
    """Turns steps of calls into lines. A call without inner calls takes one line; any other has an opening line and a
    closing line."""

    def __init__(self, views: Mapping[int, View], console: Console) -> None:
        self._views = views
        self._console = console
        self._pending: Call | None = None

    def lines(self, steps: Iterable[tuple[Call, bool]]) -> Iterator[str]:
        """The lines that are complete now; the line of the newest call may have to wait for the next step."""
        for call, begins in steps:
            if begins:
                yield from self.flush()
                self._pending = call
            elif call is self._pending:
                self._pending = None
                yield self._line(call, self._call_text(call) + self._end(call, "") + ";")
            else:
                yield from self.flush()
                comment = self._console.dim(f" /* {self._views[call.ip].name} */")
                yield self._line(call, "}" + self._end(call, comment))

    def flush(self) -> Iterator[str]:
        """The opening line of the waiting call: it has inner calls, or another thread's line follows."""
        if self._pending is not None:
            call, self._pending = self._pending, None
            yield self._line(call, self._call_text(call) + " {", time=False)

    def _call_text(self, call: Call) -> str:
        view = self._views[call.ip]
        return f"{self._console.bold(view.name)}({entry_text(view, call.arguments)})"

    def _end(self, call: Call, comment: str) -> str:
        if call.lost:
            return comment + self._console.bad(" /* return not seen */")
        assert call.result is not None
        text = result_text(self._views[call.ip], call.result)
        if text.startswith("-"):
            text = self._console.bad(text)
        return (f" = {text}" if text else "") + comment

    def _line(self, call: Call, text: str, *, time: bool = True) -> str:
        duration = duration_text(call.duration) if time and not call.lost else " " * 10
        return f" {self._console.dim(f'{duration} [{call.thread:>7}]')} | {_INDENT * call.depth}{text}"
