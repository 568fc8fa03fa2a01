"""Calls as objects, one for each entry and each return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fprobe.calls.capture import Images
from fprobe.cli.calls import Call
from fprobe.cli.views import Side, View

Describe = Callable[[int], str]


class Objects:
    """Turns steps of calls into objects for JSON. `describe`: from an address to its description."""

    def __init__(self, views: Mapping[int, View], describe: Describe) -> None:
        self._views = views
        self._describe = describe

    def objects(self, steps: Iterable[tuple[Call, bool]]) -> Iterator[dict[str, Any]]:
        """An object for each step. Pointers are numbers; the strings that they point to are in a separate field."""
        for call, begins in steps:
            yield self._entry(call) if begins else self._exit(call)

    def _common(self, kind: str, time: int, call: Call) -> dict[str, Any]:
        view = self._views[call.ip]
        place = {"tid": call.thread, "depth": call.depth, "function": view.name, "module": view.symbol.module}
        return {"type": kind, "time_ns": time, **place}

    def _entry(self, call: Call) -> dict[str, Any]:
        side = self._views[call.ip].entry
        found = self._common("entry", call.entered, call) | {"caller": self._describe(call.caller)}
        return found | {"arguments": decoded(side, call.arguments)} | _strings(side, call.arguments)

    def _exit(self, call: Call) -> dict[str, Any]:
        if call.result is None or call.left is None:
            return self._common("lost", call.entered, call)
        side = self._views[call.ip].leave
        found = self._common("exit", call.left, call) | {"duration_ns": call.duration}
        values = side.values[0].decode(call.result) if side.values else None
        return found | {"result": values} | _strings(side, call.result)


def decoded(side: Side, images: Images) -> dict[str, Any]:
    """Name -> value; None for values that cannot be read."""
    return {value.name: value.decode(images) for value in side.values}


def _strings(side: Side, images: Images) -> dict[str, Any]:
    found = {value.name or "result": value.string(images) for value in side.values}
    strings = {name: text for name, text in found.items() if text is not None}
    return {"strings": strings} if strings else {}
