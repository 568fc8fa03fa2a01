"""Calls of `fprobe trace`, from recorded events to a tree, or to objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fprobe.calls.capture import Event, Images
from fprobe.cli.views import CallEnd, FunctionView, entry_text, result_text
from fprobe.report.nesting import Call
from fprobe.report.style import Style
from sandbox.symbols.readable import called

Steps = Iterable[tuple[Call[Event], bool]]


class TraceWords:
    """The texts of calls: names, arguments and results, by the functions' signatures."""

    def __init__(self, views: Mapping[int, FunctionView], style: Style) -> None:
        self._views, self._style = views, style

    def name(self, call: Call[Event]) -> str:
        """The function."""
        return self._views[call.ip].name

    def entry(self, call: Call[Event]) -> str:
        """The function and its arguments."""
        view = self._views[call.ip]
        return called(view.name, entry_text(view, call.entry.images), self._style.bold)

    def result(self, call: Call[Event]) -> tuple[str, str]:
        """The result; one that looks like an error stands out."""
        assert call.leave is not None
        text = result_text(self._views[call.ip], call.leave.images)
        return (self._style.bad(text) if text.startswith("-") else text), ""


Describe = Callable[[int], str]


class Objects:
    """Turns steps of calls into objects for JSON. `describe`: from an address to its description."""

    def __init__(self, views: Mapping[int, FunctionView], describe: Describe) -> None:
        self._views = views
        self._describe = describe

    def objects(self, steps: Steps) -> Iterator[dict[str, Any]]:
        """An object for each step. Pointers are numbers; the strings that they point to are in a separate field."""
        for call, begins in steps:
            yield self._entry(call) if begins else self._exit(call)

    def _common(self, kind: str, time: int, call: Call[Event]) -> dict[str, Any]:
        view = self._views[call.ip]
        place = {"tid": call.thread, "depth": call.depth, "function": view.name}
        return {"type": kind, "time_ns": time, **place, "symbol": view.symbol.name, "module": view.symbol.module}

    def _entry(self, call: Call[Event]) -> dict[str, Any]:
        side = self._views[call.ip].entry
        found = self._common("entry", call.entry.time, call) | {"caller": self._describe(call.entry.caller)}
        return found | {"arguments": decoded(side, call.entry.images)} | _strings(side, call.entry.images)

    def _exit(self, call: Call[Event]) -> dict[str, Any]:
        if call.leave is None:
            return self._common("lost", call.entry.time, call)
        side = self._views[call.ip].leave
        found = self._common("exit", call.leave.time, call) | {"duration_ns": call.duration}
        values = side.values[0].decode(call.leave.images) if side.values else None
        return found | {"result": values} | _strings(side, call.leave.images)


def decoded(end: CallEnd, images: Images) -> dict[str, Any]:
    """Name -> value; None for values that cannot be read."""
    return {value.name: value.decode(images) for value in end.values}


def _strings(end: CallEnd, images: Images) -> dict[str, Any]:
    """The strings by the names of what points to them, and the names of those that are cut, if there are any."""
    found = {value.name or "result": value.string(images) for value in end.values}
    strings = {name: string for name, string in found.items() if string is not None}
    cut = [name for name, string in strings.items() if string.is_cut]
    texts = {"strings": {name: string.text for name, string in strings.items()}} if strings else {}
    return texts | ({"cut": cut} if cut else {})
