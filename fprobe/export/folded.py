"""Records as folded stacks: `comm;outer;inner VALUE`.

The value is the nanoseconds that a function took, excluding its callees. If the trace has no calls, it is the number of times
that a stack or an event was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fprobe.calls.folded import folded_stack
from fprobe.export.calls import INSTANT, LEAVE, Calls, Step
from fprobe.export.trace_dat_reader import Trace
from ftrace.events.stack_records import FTRACE_TRAMPOLINE_MARKER


def lines(trace: Trace) -> Iterator[str]:
    """A line for each stack, sorted."""
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for step in Calls(trace).steps():
        comm = trace.comm(step.record.common.pid)
        if step.kind == LEAVE:
            times[folded_stack([comm, *(call.name for call in step.stack)])] += step.duration - step.stack[-1].inner
        elif step.kind == INSTANT:
            counts[folded_stack([comm, *_frames(trace, step)])] += 1
    for stack, value in sorted((times or counts).items()):
        yield f"{stack} {value}"


def _frames(trace: Trace, step: Step) -> list[str]:
    """The frames of a recorded stack, outermost first; the event's name for other records."""
    event = trace.formats.get(step.record.common.type)
    if event is None or step.name not in ("kernel_stack", "user_stack"):
        return [step.name]
    callers = [
        address for address in event.values(step.record.data)["caller"] if address not in (0, FTRACE_TRAMPOLINE_MARKER)
    ]
    return [trace.symbols.name(address).partition(" ")[0] for address in reversed(callers)]
