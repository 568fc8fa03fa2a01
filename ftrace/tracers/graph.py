"""The tracer function_graph: a record for each entry and each return; `trace` shows them as nested calls."""

from __future__ import annotations

import ctypes
from typing import Any

from ftrace.hit.records import EXIT_VALUE
from ftrace.ring_buffer import clock
from ftrace.tracers.graph_hit import GraphState, GraphTask
from ftrace.tracers.graph_rules import graph_rules
from ftrace.tracers.probing import FunctionProbing, follow, silence
from ftrace.tracers.task_areas import TaskAreas
from ftrace.tracers.tracer import TracedArray, Tracer, TracerFlags, Tracing

_FLAGS = {
    "funcgraph-overrun": False,
    "funcgraph-cpu": True,
    "funcgraph-overhead": True,
    "funcgraph-proc": False,
    "funcgraph-duration": True,
    "funcgraph-abstime": False,
    "funcgraph-irqs": True,
    "funcgraph-tail": False,
    "funcgraph-retval": False,
    "funcgraph-retval-hex": False,
    "sleep-time": True,
    "graph-time": True,
}
_WORD = 8


class GraphTracing(Tracing):
    """The tracer, running in one trace array."""

    def __init__(self, array: TracedArray) -> None:
        self._array = array
        self._native: Any = GraphState.ctypes()
        self._tasks = TaskAreas(GraphTask.size)
        self._native.tasks = self._tasks.address
        self._native.rules = graph_rules.address
        self._clock: Any = None
        self.update()
        self._probing = FunctionProbing(
            array.function_hash,
            self._native,
            entry="trace_graph_entry",
            exit="trace_graph_return",
            detach=array.stop_tracing,
            keep=self._tasks,
            lean=True,
            kind=EXIT_VALUE,
            data_size=_WORD,
        )

    def update(self) -> None:
        """Follow the settings."""
        follow(self._native.plain, self._array)
        graph_rules.sleep_counts(function_graph.flags["sleep-time"])
        if not clock.find(self._array.buffer.clock).in_ns:
            self._clock = clock.start(clock.find("local"))
            self._native.clock = ctypes.addressof(self._clock)
        else:
            self._native.clock = 0
        self._native.is_special = int(graph_rules.are_set or bool(self._native.clock))

    def stop(self) -> None:
        """Stop recording."""
        silence(self._native.plain)
        self._probing.stop()


class GraphTracer(Tracer):
    """The tracer function_graph."""

    name = "function_graph"

    def start(self, array: TracedArray) -> Tracing:
        """Start recording. Raises OSError."""
        return GraphTracing(array)


function_graph = GraphTracer(TracerFlags(_FLAGS))
