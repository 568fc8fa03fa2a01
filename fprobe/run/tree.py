"""Recorded calls as a tree, like the output of the function_graph tracer."""

from __future__ import annotations

from collections.abc import Iterator

from fprobe.calls.text import CallTree
from fprobe.run.durations import duration
from fprobe.run.events import CallEvents, calls
from fprobe.run.names import Names


def lines(call_events: CallEvents, names: Names, rate: float) -> Iterator[str]:
    """The lines of the tree. `rate`: ticks per nanosecond."""
    if call_events.lost:
        yield f"# {call_events.lost:,} older events were overwritten: a thread's ring holds the newest"
    yield f"# {'DURATION':>8}  {'THREAD':>9}   FUNCTION"
    tree = CallTree(margin="")
    for call, begins in calls(call_events.events):
        name = str(names.function(call.ip))
        if begins:
            yield from tree.entry(call, f"{name}()")
        else:
            time = duration(((call.left or 0) - call.entered) / rate)
            yield from tree.exit(call, time, name, f"{call.result:#x}")
    yield from tree.flush()
