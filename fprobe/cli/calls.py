"""Calls of `fprobe trace`, from recorded events to a tree, or to objects for JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fprobe.calls.capture import Event, Images
from fprobe.calls.text import CallTree, duration_text
from fprobe.calls.unreturned import drop_ended, returning
from fprobe.cli.console import Console
from fprobe.cli.views import CallEnd, FunctionView, entry_text, result_text


@dataclass
class Call:
    """A call. Times are in nanoseconds; `left` and `result` are None until it returns.

    `lost`: it has returned, but its return was not recorded.
    """

    ip: int
    thread: int
    caller: int
    depth: int
    place: int
    entered: int
    arguments: Images
    left: int | None = None
    result: Images | None = None
    lost: bool = False

    @property
    def duration(self) -> int:
        """Nanoseconds from entry to return; 0 while it has not returned."""
        return self.left - self.entered if self.left is not None else 0


@dataclass
class Calls:
    """The calls of each thread, as steps: (call, True) at its beginning and (call, False) at its end."""

    stacks: dict[int, list[Call]] = field(default_factory=dict)

    def steps(self, events: Iterable[Event]) -> Iterator[tuple[Call, bool]]:
        """The steps of these events, in order."""
        for event in events:
            stack = self.stacks.setdefault(event.thread, [])
            if event.is_entry:
                yield from self._enter(event, stack)
            else:
                yield from self._leave(event, stack)

    def _enter(self, event: Event, stack: list[Call]) -> Iterator[tuple[Call, bool]]:
        for ended in drop_ended(stack, event.place):
            yield _lost(ended), False
        call = Call(event.ip, event.thread, event.caller, len(stack), event.place, event.time, event.images)
        stack.append(call)
        yield call, True

    def _leave(self, event: Event, stack: list[Call]) -> Iterator[tuple[Call, bool]]:
        inside, call = returning(stack, event.ip, event.place, event.is_newest)
        for ended in inside:
            yield _lost(ended), False
        if call is None:
            return
        call.left, call.result = event.time, event.images
        yield call, False

    def unfinished(self) -> list[Call]:
        """The calls that have not returned, outermost first, thread by thread."""
        return [call for stack in self.stacks.values() for call in stack]


def _lost(call: Call) -> Call:
    call.lost = True
    return call


class Tree:
    """Turns steps of calls into lines."""

    def __init__(self, views: Mapping[int, FunctionView], console: Console) -> None:
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

    def _result(self, view: FunctionView, call: Call) -> str:
        assert call.result is not None
        text = result_text(view, call.result)
        return self._console.bad(text) if text.startswith("-") else text


Describe = Callable[[int], str]


class Objects:
    """Turns steps of calls into objects for JSON. `describe`: from an address to its description."""

    def __init__(self, views: Mapping[int, FunctionView], describe: Describe) -> None:
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
        end = self._views[call.ip].entry
        found = self._common("entry", call.entered, call) | {"caller": self._describe(call.caller)}
        return found | {"arguments": decoded(end, call.arguments)} | _strings(end, call.arguments)

    def _exit(self, call: Call) -> dict[str, Any]:
        if call.result is None or call.left is None:
            return self._common("lost", call.entered, call)
        end = self._views[call.ip].leave
        found = self._common("exit", call.left, call) | {"duration_ns": call.duration}
        values = end.values[0].decode(call.result) if end.values else None
        return found | {"result": values} | _strings(end, call.result)


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
