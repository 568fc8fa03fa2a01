"""The tracer function: a record for each entry of the functions that set_ftrace_filter selects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftrace.hit.records import HAS_ENTRY
from ftrace.tracers.function_hit import FunctionState
from ftrace.tracers.probing import FunctionProbing, follow
from ftrace.tracers.tracer import Tracer, TracerFlags, Tracing

if TYPE_CHECKING:
    from ftrace.events.trace_array import TraceArray


class FunctionTracing(Tracing):
    """The tracer at work in one trace array."""

    def __init__(self, array: TraceArray) -> None:
        self._array = array
        self._native: Any = FunctionState.ctypes()
        self.update()
        self._probing = FunctionProbing(array, self._native, entry="function_trace_call", kind=HAS_ENTRY)

    def update(self) -> None:
        """Follow the settings."""
        follow(self._native, self._array)

    def stop(self) -> None:
        """Record no more."""
        self._probing.stop(self._native)


class FunctionTracer(Tracer):
    """The tracer."""

    name = "function"

    def start(self, array: TraceArray) -> Tracing:
        """Begin to record. Raises OSError."""
        return FunctionTracing(array)


function_tracer = FunctionTracer(TracerFlags({"func_stack_trace": False, "func-no-repeats": False}))
