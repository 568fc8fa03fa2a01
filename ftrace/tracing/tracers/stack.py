"""The stack tracer: the deepest stack that a traced function was entered with.

stack_trace, stack_max_size, stack_trace_filter and kernel.stack_tracer_enabled, as kernel/trace/trace_stack.c.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from ftrace.core.ops import ftrace_ops
from ftrace.core.sites.locations import OpsHash
from ftrace.core.tracer import tracer
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.records import ENTRY_SP
from ftrace.hit.tracers.stack_hit import StackState
from ftrace.tracing.symbols import with_offset
from ftrace.tracing.tracers.probing import FunctionProbing
from sandbox.process import fork
from sandbox.process.once import cached_property

_TRIES = 1000
_PAUSE = 0.001
"""Seconds between two attempts to read what a hit is replacing."""


class Frame(NamedTuple):
    """A function on the stack. `depth`: bytes from the top of the stack to where its callee's return address is."""

    address: int
    depth: int


class StackTracer:
    """The stack tracer. Threads are seen on their own stacks only, not on those of signals and coroutines."""

    def __init__(self) -> None:
        self._lock = fork.renew(threading.RLock())
        self._probing: FunctionProbing | None = None
        self._enabled = 0
        self.functions = ftrace_ops()
        """The owner of stack_trace_filter."""
        self.functions.func_hash = OpsHash()
        fork.in_child(fork.Phase.PROBES, self._settle)

    @cached_property
    def _state(self) -> Any:
        return StackState.ctypes()

    def _settle(self) -> None:
        """In the child of a fork: the thread that was replacing the stack is not there."""
        if self._state.sequence & 1:
            self._state.count = self._state.max_size = 0
            self._state.sequence += 1

    @property
    def enabled(self) -> int:
        """kernel.stack_tracer_enabled: 0, or what was set. Setting it raises OSError."""
        return self._enabled

    @enabled.setter
    def enabled(self, value: int) -> None:
        with tracer().reclaimer.deferred(), self._lock:
            if bool(value) != (self._probing is not None):
                (self._start if value else self._stop)()
            self._enabled = value

    def _start(self) -> None:
        unwind_tables().refresh()
        self._settle()
        self._probing = FunctionProbing(
            self.functions.func_hash,
            self._state,
            entry="stack_trace_call",
            detach=self._detach,
            kind=ENTRY_SP,
        )

    def _stop(self) -> None:
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.stop()

    def _detach(self) -> None:
        self.enabled = 0

    @property
    def max_size(self) -> int:
        """stack_max_size: the depth of the deepest stack in bytes. Only deeper ones replace it; 0: any."""
        return int(self._state.max_size)

    @max_size.setter
    def max_size(self, size: int) -> None:
        self._state.max_size = size

    def frames(self) -> list[Frame]:
        """The deepest stack, innermost function first."""
        state = self._state
        for _ in range(_TRIES):
            before = state.sequence
            count = state.count
            found = list(zip(state.dump[:count], state.index[:count], strict=True))
            if not before & 1 and state.sequence == before:
                return [Frame(*each) for each in found]
            time.sleep(_PAUSE)
        return []  # the hit that was at it was left by a longjmp


stack_tracer = StackTracer()
"""The stack tracer of the process."""


_DISABLED = """\
#
#  Stack tracer disabled
#
# To enable the stack tracer, either add 'stacktrace' to the
# kernel command line
# or 'echo 1 > /proc/sys/kernel/stack_tracer_enabled'
#
"""


def stack_trace_text() -> str:
    """The table: depth and frame size of each function in bytes, innermost first."""
    frames = stack_tracer.frames()
    head = f"        Depth    Size   Location    ({len(frames)} entries)\n        -----    ----   --------\n"
    if not stack_tracer.enabled and not stack_tracer.max_size:
        head += _DISABLED
    outer = [frame.depth for frame in frames[1:]] + [0]
    rows = (
        f"{number:3}) {frame.depth:8}   {frame.depth - next_depth:5}   {with_offset(frame.address)}\n"
        for number, (frame, next_depth) in enumerate(zip(frames, outer, strict=False))
    )
    return head + "".join(rows)
