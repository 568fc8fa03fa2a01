"""The available tracers."""

from __future__ import annotations

import errno

from ftrace.tracers.function import function_tracer
from ftrace.tracers.graph import function_graph
from ftrace.tracers.tracer import Tracer, nop

tracers: tuple[Tracer, ...] = (function_graph, function_tracer, nop)
"""The tracers in the order of available_tracers."""


def find_tracer(name: str) -> Tracer:
    """The tracer of that name. Raises OSError(EINVAL), with a list of the tracers."""
    for tracer in tracers:
        if tracer.name == name:
            return tracer
    known = ", ".join(tracer.name for tracer in tracers)
    raise OSError(errno.EINVAL, f"the tracer is {name!r}; it must be one of {known}")
