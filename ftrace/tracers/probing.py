"""The native probe of a tracer, on the functions that a trace array's filter selects."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ftrace.ops import ftrace_ops, register_ops, unregister_ftrace_function
from ftrace.probe import NativeProbe
from ftrace.runtime import runtime
from ftrace.tracer import tracer

if TYPE_CHECKING:
    from ftrace.events.trace_array import TraceArray


def follow(state: Any, array: TraceArray) -> None:
    """Tell a FunctionState what its trace array records into, and for whom."""
    state.buffer = array.buffer.address
    state.tracing_on = array.switch
    state.tasks = array.function_tasks.address


class FunctionProbing:
    """One ftrace_ops with the functions of a trace array.

    `state`: the ctypes structure that the handlers record with; `entry`, `exit`: their names in the runtime; `values`: of the
    native Probe. Raises OSError.
    """

    def __init__(self, array: TraceArray, state: Any, entry: str, exit: str = "", **values: int) -> None:
        address = runtime().image.address
        self._state = state
        self._off = ctypes.c_uint64(0)
        self._ops = ftrace_ops(address(entry))
        self._ops.func_hash = array.function_hash
        self._ops.hooks_return = bool(exit)
        self._ops.detach = array.stop_tracing
        probe = NativeProbe(
            tracer().table.lines,
            (state, self._off),
            entry=address(entry),
            exit=address(exit) if exit else 0,
            action=ctypes.addressof(state),
            **values,
        )
        register_ops(self._ops, probe)

    def stop(self, state: Any) -> None:
        """Take it off; `state`: the FunctionState, which records nothing from now on. Stopping again does nothing."""
        state.tracing_on = ctypes.addressof(self._off)
        if self._ops.enabled:
            unregister_ftrace_function(self._ops)
