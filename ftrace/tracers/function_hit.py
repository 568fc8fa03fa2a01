"""What the tracer function does when a function is entered: function_trace_call() of kernel/trace/trace_functions.c."""

from __future__ import annotations

from ftrace.hit.nodes import EXIT_FROM_STUB, below
from ftrace.hit.records import Probe
from ftrace.ring_buffer.records import Mark, RingBuffer
from ftrace.ring_buffer.writer import commit, reserve
from ftrace.tracers.task_filter import TaskFilter, ignores_task
from sandbox.native import (
    Structure,
    addressof,
    bool_,
    cast,
    i32,
    native,
    null,
    ptr,
    struct,
    u64,
    unlikely,
    volatile_load,
    zeroed,
)
from sandbox.threads.tasks import current

TRACE_FN = 1
_SIZE = 24


@struct
class FunctionRecord(Structure):
    """A function's entry, as events/ftrace/function describes it."""

    common: u64
    ip: u64
    parent_ip: u64


@struct
class FunctionState(Structure):
    """What the tracer of one trace array records with."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    tasks: ptr[TaskFilter]


@native(inline=True)
def true_parent(parent: u64) -> u64:
    """The caller, also of a function that was reached by a jump out of one whose return is hooked."""
    node = current().top
    while unlikely(parent == node.stub + EXIT_FROM_STUB):
        parent = node.parent
        node = below(node)
    return parent


@native(inline=True)
def is_recorded(state: ptr[FunctionState]) -> bool_:
    """Whether recording is on, for this thread too."""
    if unlikely(volatile_load(state.tracing_on) == 0):
        return False
    return not ignores_task(state.tasks)


@native(cc="preserve_most")
def function_trace_call(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    state = cast(ptr[FunctionState], probe.action)
    if is_recorded(state):
        mark: Mark = zeroed
        entry = reserve(state.buffer, addressof(mark), TRACE_FN, _SIZE)
        if entry != null:
            record = cast(ptr[FunctionRecord], entry)
            record.ip = ip
            record.parent_ip = true_parent(parent_ip)
            commit(addressof(mark))
    return 0


FUNCTIONS = (function_trace_call,)
