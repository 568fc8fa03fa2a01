"""The rows of the tracers: what it costs to record the entries, or entries and returns, of functions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from benchmarks.measure import Row, Sample
from benchmarks.probes import sample_loop
from fprobe.tracefs import tracefs
from ftrace.core.tracer import tracer


@contextlib.contextmanager
def _traced(name: str, target: str) -> Iterator[Any]:
    """The function recorded by a tracer."""
    tracefs.write("set_ftrace_filter", f"{target}\n")
    tracefs.write("current_tracer", name)
    try:
        yield _Counted()
    finally:
        tracefs.write("current_tracer", "nop")
        tracefs.write("set_ftrace_filter", "\n")


class _Counted:
    """The tracer's counts, as those of an attachment."""

    def __init__(self) -> None:
        self._probe = tracer().enabled[0].probe

    @property
    def hits(self) -> int:
        return self._probe.counts().hits

    @property
    def counts(self) -> Any:
        return SimpleNamespace(missed=self._probe.counts().missed)


def _of(name: str, calls: int) -> Sample:
    sample = sample_loop(partial(_traced, name), calls)
    tracefs.write("trace", "")
    return sample


def rows(calls: int) -> list[Row]:
    """The rows of this module."""
    return [
        Row("tracer.function", "the tracer function", partial(_of, "function", calls)),
        Row("tracer.function_graph", "the tracer function_graph", partial(_of, "function_graph", calls)),
    ]
