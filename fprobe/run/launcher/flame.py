"""The stacks of a run, as folded text, as a file of speedscope, or as a flame graph in one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fprobe.report.flame import Stack, flame_page
from fprobe.report.tree import folded_stack
from fprobe.run.launcher.remarks import shown_command
from fprobe.run.launcher.results import Process


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


def flame_of(processes: Sequence[Process], rate: float, title: str, probed: Sequence[str]) -> str:
    """A flame graph of all processes, as the text of an HTML file."""
    several = sum(bool(process.stack_counts) for process in processes) > 1
    return flame_page(stacks(processes, rate), title, probed, has_processes=several)
