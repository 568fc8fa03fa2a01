"""The native probe of a tracer, on the functions that a filter selects, with its memory for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ftrace.core.ops import ftrace_ops, register_ops, unregister_ftrace_function
from ftrace.core.probe import NativeProbe
from ftrace.core.runtime import runtime
from ftrace.core.sites.locations import OpsHash
from ftrace.core.tracer import tracer
from ftrace.hit.records import HAS_ENTRY, HAS_EXIT, LEAN
from ftrace.hit.task_filter import TaskFilter
from ftrace.tracing.tracers.interfaces import TracedArray
from sandbox.process.integers import INT_MAX

_OFF = ctypes.c_uint64(0)
"""The word tracing_on of tracers that have stopped."""


def follow(state: Any, array: TracedArray) -> None:
    """Set a FunctionState's buffer and thread filter to those of its trace array."""
    state.buffer = array.buffer.address
    state.tracing_on = array.switch
    state.tasks = array.function_tasks.address
    state.careful = state.tasks + TaskFilter.offset("is_set")


def silence(state: Any) -> None:
    """Stop a FunctionState from recording."""
    state.tracing_on = ctypes.addressof(_OFF)


def _lean_forms(entry: str, exit: str) -> dict[str, int]:
    """The fields of a native Probe for the lean forms of its handlers."""
    ends = {"lean_entry": entry, "lean_exit": exit}
    return {field: runtime().image.address(f"{name}_lean") for field, name in ends.items() if name}


class FunctionProbing:
    """One ftrace_ops with the functions that `functions` selects.

    `state`: the handlers' ctypes structure; `entry`, `exit`: the handlers' names in the runtime; `detach`: called by
    `detach_all`; `kind`: what else the Probe is; `keep`: objects that must live as long; `values`: other fields of the
    native Probe; `lean`: the runtime has lean forms of the handlers, called `entry` and `exit` with `_lean`. No return is missed
    for want of nodes. Raises OSError.
    """

    def __init__(
        self,
        functions: OpsHash,
        state: Any,
        *,
        entry: str,
        exit: str = "",
        detach: Callable[[], None],
        lean: bool = False,
        kind: int = 0,
        keep: object = None,
        **values: int,
    ) -> None:
        address = runtime().image.address
        self._ops = ftrace_ops(address(entry))
        self._ops.func_hash = functions
        self._ops.hooks_return = bool(exit)
        self._ops.detach = detach
        if lean:
            kind |= LEAN
            values |= _lean_forms(entry, exit)
        if exit:
            kind |= HAS_EXIT
            values |= {"exit": address(exit), "pool_unclaimed": INT_MAX, "nr_nodes": INT_MAX}
        values |= {"kind": kind | HAS_ENTRY, "entry": address(entry), "action": ctypes.addressof(state)}
        register_ops(self._ops, NativeProbe(tracer().table.lines, (state, keep), **values))

    def stop(self) -> None:
        """Unregister the probe. Stopping again does nothing."""
        if self._ops.enabled:
            unregister_ftrace_function(self._ops)
