"""Records in the Trace Event Format of chrome://tracing and ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fprobe.export.calls import ENTER, LEAVE, Calls, Step
from fprobe.export.trace_dat_reader import Trace

_PHASES = {ENTER: "B", LEAVE: "E"}
_PID = 1
"""A placeholder: a trace does not contain the process id."""


def lines(trace: Trace) -> Iterator[str]:
    """The lines of one JSON object: an event for each record, with times in microseconds, and the names of the threads."""
    yield '{"displayTimeUnit": "ns", "traceEvents": ['
    threads = set()
    for step in Calls(trace).steps():
        threads.add(step.record.common.pid)
        yield json.dumps(_event(trace, step)) + ","
    names = [_thread_name(tid, trace.comm(tid)) for tid in sorted(threads)]
    yield ",\n".join(
        map(json.dumps, [{"name": "process_name", "ph": "M", "pid": _PID, "args": {"name": "fprobe"}}, *names])
    )
    yield "]}"


def _event(trace: Trace, step: Step) -> dict[str, Any]:
    event = trace.formats.get(step.record.common.type)
    found = {
        "name": step.name,
        "ph": _PHASES.get(step.kind, "i"),
        "ts": step.record.stamp / 1000,
        "pid": _PID,
        "tid": step.record.common.pid,
        "args": event.values(step.record.data) if event is not None else {},
    }
    return found if step.kind in _PHASES else found | {"s": "t"}


def _thread_name(tid: int, comm: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": _PID, "tid": tid, "args": {"name": comm}}
