"""Pairs recorded entries and returns into calls.

A call is a pair of funcgraph_entry and funcgraph_exit of the function_graph tracer, or a pair of hits of probes at a
function's entry and return. Any other record is an instant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fprobe.export.print_fmt import arguments
from fprobe.export.trace_dat_reader import Trace
from ftrace.ring_buffer.reader import Record

ENTER, LEAVE, INSTANT = "enter", "leave", "instant"
_GRAPH_ENTRY, _GRAPH_EXIT = "funcgraph_entry", "funcgraph_exit"


@dataclass
class Call:
    """A call. `depth`: number of its callers; `entered`: time of its entry; `inner`: time spent in calls that it made."""

    thread: int
    depth: int
    function: int
    name: str
    entered: int
    arguments: str
    inner: int = 0


@dataclass
class Step:
    """A record interpreted: the entry or the return of a call, or an instant. `kind`: ENTER, LEAVE or INSTANT."""

    kind: str
    record: Record
    name: str
    text: str
    """The arguments, the result, or the text of an instant."""
    stack: tuple[Call, ...]
    """The thread's calls in progress, outermost first, including the one that is entered or left."""
    duration: int = 0


@dataclass
class Calls:
    """The calls of a trace, thread by thread."""

    trace: Trace
    stacks: dict[int, list[Call]] = field(default_factory=dict)

    def steps(self) -> Iterator[Step]:
        """One step for each record, in order of time. A call whose return is missing has no LEAVE."""
        returning = self._returning()
        for record in self.trace.records():
            event = self.trace.formats.get(record.common.type)
            values = event.values(record.data) if event is not None else {}
            name = event.name if event is not None else f"type {record.common.type}"
            stack = self.stacks.setdefault(record.common.pid, [])
            function = _entered(name, values, returning)
            if function is not None:
                yield self._enter(record, function, stack)
            elif (function := _left(name, values)) is not None and any(call.function == function for call in stack):
                yield self._leave(record, function, stack)
            else:
                yield Step(INSTANT, record, name, self._text(record), tuple(stack))

    def _enter(self, record: Record, function: int, stack: list[Call]) -> Step:
        name = self.trace.symbols.name(function).partition(" ")[0]
        call = Call(record.common.pid, len(stack), function, name, record.stamp, self._text(record))
        stack.append(call)
        return Step(ENTER, record, call.name, call.arguments, tuple(stack))

    def _leave(self, record: Record, function: int, stack: list[Call]) -> Step:
        while stack[-1].function != function:  # its return was not recorded
            stack.pop()
        before = tuple(stack)
        call = stack.pop()
        duration = record.stamp - call.entered
        if stack:
            stack[-1].inner += duration
        return Step(LEAVE, record, call.name, self._text(record), before, duration)

    def _text(self, record: Record) -> str:
        event = self.trace.formats.get(record.common.type)
        if event is None or event.group == "ftrace":
            return ""
        return arguments(event, record.data, self.trace.symbols.describe, self.trace.symbols.name)

    def _returning(self) -> set[int]:
        """Addresses of the functions whose returns were recorded by probes."""
        kinds = {number: event for number, event in self.trace.formats.items() if _has(event, "__probe_func")}
        if not kinds:
            return set()
        records = (record for record in self.trace.records() if record.common.type in kinds)
        return {kinds[record.common.type].values(record.data)["__probe_func"] for record in records}


def _has(event: Any, name: str) -> bool:
    return any(field.name == name for field in event.fields)


def _entered(name: str, values: dict[str, Any], returning: set[int]) -> int | None:
    if name == _GRAPH_ENTRY:
        return int(values["func"])
    ip = values.get("__probe_ip")
    return ip if ip in returning else None


def _left(name: str, values: dict[str, Any]) -> int | None:
    if name == _GRAPH_EXIT:
        return int(values["func"])
    return values.get("__probe_func")
