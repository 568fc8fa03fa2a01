"""Traced calls as a tree, with their arguments and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fprobe.calls.tree import CallTree
from fprobe.cli.calls import Call
from fprobe.cli.console import Console
from fprobe.cli.views import View, entry_text, result_text
from fprobe.export.durations import duration_text


class Tree:
    """Turns steps of calls into lines."""

    def __init__(self, views: Mapping[int, View], console: Console) -> None:
        self._views = views
        self._console = console
        self._tree = CallTree(dim=console.dim)
        self.flush = self._tree.flush

    def lines(self, steps: Iterable[tuple[Call, bool]]) -> Iterator[str]:
        """The lines that are complete now; the line of the newest call may have to wait for the next step."""
        for call, begins in steps:
            view = self._views[call.ip]
            if begins:
                yield from self._tree.entry(
                    call, f"{self._console.bold(view.name)}({entry_text(view, call.arguments)})"
                )
            elif call.lost:
                yield from self._tree.exit(call, "", view.name, "", self._console.bad(" /* return not seen */"))
            else:
                yield from self._tree.exit(call, duration_text(call.duration), view.name, self._result(view, call))

    def _result(self, view: View, call: Call) -> str:
        assert call.result is not None
        text = result_text(view, call.result)
        return self._console.bad(text) if text.startswith("-") else text
