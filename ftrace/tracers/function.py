"""The tracer function: a record for each entry of the functions that set_ftrace_filter selects."""

from __future__ import annotations

from typing import Any

from ftrace.hit.records import HAS_ENTRY
from ftrace.tracers.function_hit import FunctionState, LastCall
from ftrace.tracers.probing import FunctionProbing, follow, silence
from ftrace.tracers.task_areas import TaskAreas
from ftrace.tracers.tracer import TracedArray, Tracer, TracerFlags, Tracing


class FunctionTracing(Tracing):
    """The tracer at work in one trace array."""

    def __init__(self, array: TracedArray) -> None:
        self._array = array
        self._native: Any = FunctionState.ctypes()
        self._last_calls = TaskAreas(LastCall.size)
        self.update()
        self._probing = FunctionProbing(
            array.function_hash,
            self._native,
            entry="function_trace_call",
            detach=array.stop_tracing,
            keep=self._last_calls,
            kind=HAS_ENTRY,
        )

    def update(self) -> None:
        """Follow the settings."""
        follow(self._native, self._array)
        self._native.last_calls = self._last_calls.address if function_tracer.flags["func-no-repeats"] else 0

    def stop(self) -> None:
        """Record no more."""
        silence(self._native)
        self._probing.stop()


class FunctionTracer(Tracer):
    """The tracer."""

    name = "function"

    def start(self, array: TracedArray) -> Tracing:
        """Begin to record. Raises OSError."""
        return FunctionTracing(array)


function_tracer = FunctionTracer(TracerFlags({"func_stack_trace": False, "func-no-repeats": False}))
