"""The tracer function: a record for each entry of the functions that set_ftrace_filter selects."""

from __future__ import annotations

from typing import Any

from ftrace.hit.records import ENTRY_SP
from ftrace.tracers.function_hit import FunctionState, LastCall
from ftrace.tracers.probing import FunctionProbing, follow, silence
from ftrace.tracers.task_areas import TaskAreas
from ftrace.tracers.tracer import TracedArray, Tracer, TracerFlags, Tracing
from ftrace.unwind.code_map import unwind_tables


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
        self._native.last_calls = self._last_calls.address if function_tracer.flags["func-no-repeats"] else 0

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
    """The tracer function."""

    name = "function"

    def start(self, array: TracedArray) -> Tracing:
        """Start recording. Raises OSError."""
        return FunctionTracing(array)


function_tracer = FunctionTracer(TracerFlags({"func_stack_trace": False, "func-no-repeats": False}))
