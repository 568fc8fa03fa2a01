"""Native handlers of the tracer function, as in kernel/trace/trace_functions.c."""

from __future__ import annotations

from ftrace.hit.events.builtin_records import FTRACE_TRAMPOLINE_MARKER, KERNEL_STACK, write_stack
from ftrace.hit.nodes import true_parent
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.clock_state import clock_now
from ftrace.hit.ring_buffer.records import Mark, Reservation, RingBuffer
from ftrace.hit.ring_buffer.writer import commit, reserve, reserve_for
from ftrace.hit.task_filter import TaskFilter, ignores_task
from ftrace.hit.unwind.walk import MAX_DEPTH, StackPoint, walk_stack
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Task, current

TRACE_FN, TRACE_FUNC_REPEATS = 1, 19
_SIZE, _REPEATS_SIZE = 24, 32
_MOST_REPEATS = (1 << 16) - 1


@struct
class FunctionRecord(Structure):
    """A function's entry: the record events/ftrace/function."""

    common: u64
    ip: u64
    parent_ip: u64


@struct
class RepeatsRecord(Structure):
    """Repeats of a call, with the time since the last one: the record events/ftrace/func_repeats."""

    common: u64
    ip: u64
    parent_ip: u64
    count: u16
    top_delta: u16
    bottom_delta: u32


@struct
class LastCall(Structure):
    """The last call of one slot, for func-no-repeats: struct trace_func_repeats. It outlives the slot's thread."""

    ip: u64
    parent_ip: u64
    count: u64
    time: u64
    reserved: array[u64, 4]


@struct
class FunctionState(Structure):
    """The native state of the tracer in one trace array."""

    buffer: ptr[RingBuffer]
    tracing_on: ptr[u64]
    tasks: ptr[TaskFilter]
    careful: ptr[u64]  # the word is 0 if there are neither thread filters nor last_calls
    last_calls: u64  # func-no-repeats: address of the first slot's LastCall; 0: repeated calls are recorded


@native(inline=True)
def is_recorded(state: ptr[FunctionState]) -> bool_:
    """Whether recording is on, and the filter selects the running thread."""
    if unlikely(volatile_load(state.tracing_on) == 0):
        return False
    return not ignores_task(state.tasks)


@native
def record_repeats(state: ptr[FunctionState], last: ptr[LastCall]) -> void:
    """Record how often the last call was repeated: trace_last_func_repeats()."""
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve(state.buffer, addressof(mark), addressof(place), TRACE_FUNC_REPEATS, _REPEATS_SIZE):
        record = cast(ptr[RepeatsRecord], place.event)
        record.ip = last.ip
        record.parent_ip = last.parent_ip
        record.count = cast(u16, last.count)
        delta = clock_now(mark.ring.clock) - last.time
        record.top_delta = cast(u16, delta >> 32)
        record.bottom_delta = cast(u32, delta)
        commit(addressof(mark), addressof(place))
    last.count = 0


@native
def is_repeated(state: ptr[FunctionState], ip: u64, parent: u64) -> bool_:
    """Whether the slot's last call was the same. If not, the last call's repeats are recorded."""
    last = cast(ptr[LastCall], state.last_calls + cast(u64, current().index) * sizeof(LastCall))
    if last.ip == ip and last.parent_ip == parent and last.count < _MOST_REPEATS:
        last.count += 1
        last.time = clock_now(state.buffer.live.clock)
        return True
    if last.count != 0:
        record_repeats(state, last)
    last.ip = ip
    last.parent_ip = parent
    return False


@native(noinline=True)
def is_wanted(state: ptr[FunctionState], ip: u64, parent: u64) -> bool_:
    """Whether the filter selects the running thread, and its last call was another, if that matters."""
    if ignores_task(state.tasks):
        return False
    return volatile_load(addressof(state.last_calls)) == 0 or not is_repeated(state, ip, parent)


@native(inline=True)
def record_call(task: ptr[Task], state: ptr[FunctionState], ip: u64, parent_ip: u64) -> bool_:
    """Record an entry. Returns False if it was not recorded."""
    if unlikely(volatile_load(state.tracing_on) == 0):
        return False
    parent = true_parent(task, parent_ip)
    if unlikely(volatile_load(state.careful) != 0) and not is_wanted(state, ip, parent):
        return False
    mark: Mark = zeroed
    place: Reservation = zeroed
    if reserve_for(task, state.buffer, addressof(mark), addressof(place), TRACE_FN, _SIZE):
        record = cast(ptr[FunctionRecord], place.event)
        record.ip = ip
        record.parent_ip = parent
        commit(addressof(mark), addressof(place))
    return True


@native(noinline=True, name="function_trace_call_lean")
def trace_call_lean(probe: ptr[Probe], ip: u64, parent_ip: u64, task: ptr[Task], data: ptr[u64]) -> i32:
    record_call(task, cast(ptr[FunctionState], probe.action), ip, parent_ip)
    return 0


@native(cc="preserve_most")
def function_trace_call(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    return trace_call_lean(probe, ip, parent_ip, current(), data)


@native(cc="preserve_most")
def function_stack_trace_call(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    """The handler for func_stack_trace: records the stack, from the trampoline outwards, after each entry."""
    state = cast(ptr[FunctionState], probe.action)
    if record_call(current(), state, ip, parent_ip):
        entries: array[u64, 64] = zeroed
        point: StackPoint = zeroed
        point.ip = ip
        point.sp = regs.sp
        point.bp = regs.bp
        entries[0] = FTRACE_TRAMPOLINE_MARKER
        count = walk_stack(addressof(point), addressof(entries[1]), MAX_DEPTH - 1) + 1
        write_stack(state.buffer, KERNEL_STACK, cast(u32, count), addressof(entries[0]), count)
    return 0


FUNCTIONS = (function_trace_call, trace_call_lean, function_stack_trace_call)
