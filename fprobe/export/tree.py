"""Records as a tree of calls, like the output of uftrace and of the function_graph tracer."""

from __future__ import annotations

from collections.abc import Iterator

from fprobe.export.calls import ENTER, LEAVE, Calls, Step
from fprobe.export.durations import HEADER, duration_text
from fprobe.export.trace_dat_reader import Trace

_NO_DURATION = " " * 10


def lines(trace: Trace) -> Iterator[str]:
    """The lines of the tree: one for a leaf call, an opening and a closing line for others."""
    yield HEADER
    pending: Step | None = None
    for step in Calls(trace).steps():
        if pending is not None and not _ends(pending, step):
            yield _line(pending, f"{pending.name}({pending.text}) {{")
        if step.kind == LEAVE:
            yield _closing(step, pending)
        elif step.kind != ENTER:
            yield _line(step, f"/* {step.name}{': ' * bool(step.text)}{step.text} */")
        pending = step if step.kind == ENTER else None
    if pending is not None:
        yield _line(pending, f"{pending.name}({pending.text}) {{")


def _ends(pending: Step, step: Step) -> bool:
    """Whether `step` is the return of the call that `pending` entered."""
    return step.kind == LEAVE and step.stack[-1] is pending.stack[-1]


def _closing(step: Step, pending: Step | None) -> str:
    result = f" = {step.text}" if step.text else ""
    if pending is not None and _ends(pending, step):
        return _line(step, f"{step.name}({pending.text}){result};")
    return _line(step, f"}}{result} /* {step.name} */")


def _line(step: Step, text: str) -> str:
    duration = duration_text(step.duration) if step.kind == LEAVE else _NO_DURATION
    depth = len(step.stack) - (step.kind in (ENTER, LEAVE))
    return f" {duration} [{step.record.common.pid:>7}] | {'  ' * depth}{text}"
