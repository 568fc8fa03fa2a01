"""The stacks of a run, and their lines as folded text, with nanoseconds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fprobe.calls.text import folded_stack
from fprobe.run.results import Process


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
        root = [f"{process.pid} {shlex.join(process.command)}"[:60]] if len(counted) > 1 else []
        for number, count in process.stack_counts.items():
            *outer, function = process.stacks.get(number, [0])
            frames = (*root, *(_name(process, frame) for frame in outer), str(process.names.function(int(function))))
            known = found.get(frames, Stack(frames, 0, 0))
            found[frames] = Stack(frames, known.calls + count.calls, known.nanoseconds + round(count.ticks / rate))
    return sorted(found.values())


def lines(processes: Sequence[Process], rate: float) -> Iterator[str]:
    """A line for each stack."""
    for stack in stacks(processes, rate):
        yield f"{folded_stack(stack.frames)} {stack.nanoseconds}"


def _name(process: Process, frame: int | str) -> str:
    return frame if isinstance(frame, str) else str(process.names.around(frame))
