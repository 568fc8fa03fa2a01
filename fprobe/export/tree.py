"""Records as a tree of calls, like the output of uftrace and of the function_graph tracer."""

from __future__ import annotations

from collections.abc import Iterator

from fprobe.calls.tree import CallTree
from fprobe.export.calls import ENTER, LEAVE, Calls
from fprobe.export.durations import HEADER, duration_text
from fprobe.export.trace_dat_reader import Trace


def lines(trace: Trace) -> Iterator[str]:
    """The lines of the tree."""
    yield HEADER
    tree = CallTree()
    for step in Calls(trace).steps():
        if step.kind == ENTER:
            yield from tree.entry(step.stack[-1], f"{step.name}({step.text})")
        elif step.kind == LEAVE:
            yield from tree.exit(step.stack[-1], duration_text(step.duration), step.name, step.text)
        else:
            text = f"{step.name}: {step.text}" if step.text else step.name
            yield from tree.instant(step.record.common.pid, len(step.stack), text)
    yield from tree.flush()
