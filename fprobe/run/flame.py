"""The stacks of a run, as folded text or as a flame graph in one HTML file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fprobe.calls.text import folded_stack
from fprobe.run.remarks import shown_command
from fprobe.run.results import Process

_PAGE = Path(__file__).with_name("flame.html")


class Stack(NamedTuple):
    """Calls with one stack. `frames`: outermost first; `nanoseconds`: excluding recorded calls inside."""

    frames: tuple[str, ...]
    calls: int
    nanoseconds: int


def stacks(processes: Sequence[Process], rate: float) -> list[Stack]:
    """The stacks, sorted. If several processes have stacks, the process is the outermost frame. `rate`: ticks per nanosecond."""
    found: dict[tuple[str, ...], Stack] = {}
    counted = [process for process in processes if process.stack_counts]
    for process in counted:
        root = [f"{process.pid} {shown_command(process.command)}"[:60]] if len(counted) > 1 else []
        for number, count in process.stack_counts.items():
            *outer, function = process.stacks.get(number, [0])
            frames = (*root, *(_name(process, frame) for frame in outer), str(process.names.function(int(function))))
            known = found.get(frames, Stack(frames, 0, 0))
            found[frames] = Stack(frames, known.calls + count.calls, known.nanoseconds + round(count.ticks / rate))
    return sorted(found.values())


def folded_lines(processes: Sequence[Process], rate: float) -> Iterator[str]:
    """Folded text: a line for each stack, with its nanoseconds."""
    for stack in stacks(processes, rate):
        yield f"{folded_stack(stack.frames)} {stack.nanoseconds}"


def _name(process: Process, frame: int | str) -> str:
    return frame if isinstance(frame, str) else str(process.names.around(frame))


def flame_page(processes: Sequence[Process], rate: float, title: str) -> str:
    """A flame graph, as the text of an HTML file. `rate`: ticks per nanosecond."""
    several = sum(bool(process.stack_counts) for process in processes) > 1
    data = json.dumps(_nested(stacks(processes, rate)) | {"processes": several}).replace("</", "<\\/")
    return _PAGE.read_text().replace("TITLE", escape(title)).replace("DATA", data)


def _nested(stacks: Sequence[Stack]) -> dict[str, Any]:
    """Nested frames, each with `name`, `value` (nanoseconds including inner frames), `calls` (recorded calls of a function with
    this stack) and `inner` (a list of frames).
    """
    root: dict[str, Any] = {"name": "all", "value": 0, "calls": 0, "inner": []}
    for stack in stacks:
        _add(root, stack)
    return root


def _add(root: dict[str, Any], stack: Stack) -> None:
    node = root
    node["value"] += stack.nanoseconds
    for name in stack.frames:
        known = next((inner for inner in node["inner"] if inner["name"] == name), None)
        if known is None:
            known = {"name": name, "value": 0, "calls": 0, "inner": []}
            node["inner"].append(known)
        node = known
        node["value"] += stack.nanoseconds
    node["calls"] += stack.calls
