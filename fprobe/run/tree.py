"""Recorded calls as a tree, like the output of the function_graph tracer."""

from __future__ import annotations

from collections.abc import Iterator

from fprobe.run.durations import duration
from fprobe.run.events import Call, Kept, calls
from fprobe.run.names import Names


def lines(kept: Kept, names: Names, rate: float) -> Iterator[str]:
    """The lines of the tree: one for a leaf call, an opening and a closing line for others. `rate`: ticks per nanosecond."""
    if kept.lost:
        yield f"# {kept.lost:,} older events were overwritten: a thread's ring holds the newest"
    yield f"# {'DURATION':>8}  {'THREAD':>9}   FUNCTION"
    pending: Call | None = None
    for call, begins in calls(kept.events):
        if pending is not None and not (call is pending and not begins):
            yield _line(pending, f"{names.function(pending.ip)}() {{", "")
        if not begins:
            time = duration(((call.left or 0) - call.entered) / rate)
            name = names.function(call.ip)
            text = f"{name}() = {call.result:#x};" if call is pending else f"}} = {call.result:#x} /* {name} */"
            yield _line(call, text, time)
        pending = call if begins else None
    if pending is not None:
        yield _line(pending, f"{names.function(pending.ip)}() {{", "")


def _line(call: Call, text: str, time: str) -> str:
    return f"{time:>10} [{call.thread:>7}] | {'  ' * call.depth}{text}"
