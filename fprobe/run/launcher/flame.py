"""The stacks of a run, as folded text, as a file of speedscope, or as a flame graph in one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fprobe.calls.stack_memory import CUT, PythonPlace, StackCounts
from fprobe.report.flame import Stack, flame_page
from fprobe.report.tree import folded_stack
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.remarks import shown_command
from fprobe.run.launcher.report_selection import ReportSelection


def stacks(processes: Sequence[Process], rate: float, selection: ReportSelection) -> list[Stack]:
    """The stacks, sorted. If several processes have stacks, the process is the outermost frame. `rate`: ticks per nanosecond."""
    found: dict[tuple[str, ...], Stack] = {}
    counted = [process for process in processes if process.stacks]
    for process in counted:
        root = [f"{process.pid} {shown_command(process.command)}"[:60]] if len(counted) > 1 else []
        for each in process.stacks:
            frames = (*root, *frame_names(process, each))
            known = found.get(frames, Stack(frames, 0, 0))
            found[frames] = Stack(frames, known.calls + each.calls, known.value + value_of(each, rate, selection))
    return sorted(found.values())


def frame_names(process: Process, stack: StackCounts) -> Iterator[str]:
    """The names of a stack's frames, outermost first. The last is the function's."""
    *outer, function = stack.frames
    for frame in outer:
        if isinstance(frame, PythonPlace):
            yield str(frame)
        else:
            yield "..." if frame == CUT else str(process.names.around(frame))
    assert isinstance(function, int)
    yield str(process.names.function(function))


def value_of(stack: StackCounts, rate: float, selection: ReportSelection) -> int:
    """What counts of a stack: nanoseconds; or the sum of the argument, or calls, if values are asked for."""
    if selection.stack_values is None:
        return round(stack.weight / rate)
    return stack.weight if selection.stack_values.sum else stack.calls


def folded_lines(processes: Sequence[Process], rate: float, selection: ReportSelection) -> Iterator[str]:
    """Folded text: a line for each stack, with its value."""
    for stack in stacks(processes, rate, selection):
        yield f"{folded_stack(stack.frames)} {stack.value}"


def speedscope_text(processes: Sequence[Process], rate: float, title: str, selection: ReportSelection) -> str:
    """A file of speedscope, with a profile for each process that has stacks. `rate`: ticks per nanosecond."""
    from fprobe.report.speedscope import speedscope

    profiles = {
        f"{process.pid} {shown_command(process.command)}": [
            (each.frames, each.value) for each in stacks([process], rate, selection)
        ]
        for process in processes
        if process.stacks
    }
    return speedscope(title, profiles, "none" if selection.stack_unit else "nanoseconds")


def flame_of(processes: Sequence[Process], rate: float, title: str, selection: ReportSelection) -> str:
    """A flame graph of all processes, as the text of an HTML file."""
    several = sum(bool(process.stacks) for process in processes) > 1
    found = stacks(processes, rate, selection)
    return flame_page(found, title, selection.stacks, has_processes=several, unit=selection.stack_unit)
