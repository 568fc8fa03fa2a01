"""The stacks of a run, as folded text, as a file of speedscope, or as a flame graph in one HTML file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fprobe.report.tree import folded_stack
from fprobe.run.launcher.remarks import shown_command
from fprobe.run.launcher.results import Process

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


def speedscope_text(processes: Sequence[Process], rate: float, title: str) -> str:
    """A file of speedscope, with a profile for each process that has stacks. `rate`: ticks per nanosecond."""
    from fprobe.report.speedscope import speedscope

    profiles = {
        f"{process.pid} {shown_command(process.command)}": [
            (each.frames, each.nanoseconds) for each in stacks([process], rate)
        ]
        for process in processes
        if process.stack_counts
    }
    return speedscope(title, profiles)


def _name(process: Process, frame: int | str) -> str:
    return frame if isinstance(frame, str) else str(process.names.around(frame))


def flame_page(processes: Sequence[Process], rate: float, title: str, probed: Sequence[str]) -> str:
    """A flame graph, as the text of an HTML file. `rate`: ticks per nanosecond; `probed`: the patterns, as they were given."""
    several = sum(bool(process.stack_counts) for process in processes) > 1
    also = {"processes": several, "probed": [*probed]}
    data = json.dumps(_data(stacks(processes, rate)) | also, separators=(",", ":"))
    texts = {"TITLE": escape(title), "DATA": data.replace("</", "<\\/")}
    return re.sub("TITLE|DATA", lambda found: texts[found[0]], _PAGE.read_text())


def _data(stacks: Sequence[Stack]) -> dict[str, Any]:
    """`names`, and `stacks`: nanoseconds, calls, and the numbers of the frames' names. Not nested: stacks may be deep."""
    names = {
        name: number for number, name in enumerate(dict.fromkeys(name for stack in stacks for name in stack.frames))
    }
    rows = [[stack.nanoseconds, stack.calls, [names[name] for name in stack.frames]] for stack in stacks]
    return {"names": [*names], "stacks": rows}
