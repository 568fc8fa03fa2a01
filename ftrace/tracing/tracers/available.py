"""The available tracers: function, function_graph and nop.

function makes a record for each entry of the functions that set_ftrace_filter selects; function_graph makes one for each entry
and each return, which `trace` shows as nested calls.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from ftrace.core.call_cells import TaskAreas
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.records import ENTRY_SP, EXIT_VALUE
from ftrace.hit.tracers.function_hit import FunctionState, LastCall
from ftrace.hit.tracers.graph_hit import GraphState, GraphTask
from ftrace.ring_buffer import clock
from ftrace.tracing.tracers.graph_rules import graph_rules
from ftrace.tracing.tracers.interfaces import TracedArray, Tracer, TracerFlags, Tracing, nop
from ftrace.tracing.tracers.probing import FunctionProbing, follow, silence

_ALWAYS = ctypes.c_uint64(1)
"""The word `careful` of a tracer that compares each call with the last."""


class FunctionTracing(Tracing):
    """The tracer, running in one trace array."""

    def __init__(self, array: TracedArray) -> None:
        self._array = array
        self._native: Any = FunctionState.ctypes()
        self._last_calls = TaskAreas(LastCall.size)
        self._follow()
        self._probe()

    def _follow(self) -> None:
        follow(self._native, self._array)
        if function_tracer.flags["func-no-repeats"]:
            self._native.last_calls = self._last_calls.address
            self._native.careful = ctypes.addressof(_ALWAYS)
        else:
            self._native.last_calls = 0

    def _probe(self) -> None:
        """Probe the functions with the handler that the options select: select_trace_function()."""
        self._with_stacks = function_tracer.flags["func_stack_trace"]
        if self._with_stacks:
            unwind_tables().refresh()
        self._probing = FunctionProbing(
            self._array.function_hash,
            self._native,
            entry="function_stack_trace_call" if self._with_stacks else "function_trace_call",
            detach=self._array.stop_tracing,
            keep=self._last_calls,
            lean=not self._with_stacks,
            kind=ENTRY_SP if self._with_stacks else 0,
        )

    def update(self) -> None:
        """Follow the settings. Raises OSError if the functions cannot be probed with them, which leaves no tracer."""
        self._follow()
        if function_tracer.flags["func_stack_trace"] == self._with_stacks:
            return
        self._probing.stop()
        try:
            self._probe()
        except OSError:
            self._array.stop_tracing()
            raise

    def stop(self) -> None:
        """Stop recording."""
        silence(self._native)
        self._probing.stop()


class FunctionTracer(Tracer):
    name = "function"

    def start(self, array: TracedArray) -> Tracing:
        """Start recording. Raises OSError."""
        return FunctionTracing(array)


function_tracer = FunctionTracer(TracerFlags({"func_stack_trace": False, "func-no-repeats": False}))


_GRAPH_FLAGS = {
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


function_graph = GraphTracer(TracerFlags(_GRAPH_FLAGS))


tracers: tuple[Tracer, ...] = (function_graph, function_tracer, nop)
"""The tracers in the order of available_tracers."""


def find_tracer(name: str) -> Tracer:
    """The tracer of that name. Raises OSError(EINVAL), with a list of the tracers."""
    for tracer in tracers:
        if tracer.name == name:
            return tracer
    known = ", ".join(tracer.name for tracer in tracers)
    raise OSError(errno.EINVAL, f"the tracer is {name!r}; it must be one of {known}")
