"""Native handler of the stack tracer: keeps the deepest stack that a traced function was entered with.

stack_trace_call() and check_stack() of kernel/trace/trace_stack.c. A hit that finds another one at it does nothing.
"""

from __future__ import annotations

from ftrace.hit.records import Probe
from ftrace.hit.unwind.call_frames import Reading
from ftrace.hit.unwind.walk import StackPoint, step_to_known
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import current, stack_field

STACK_TRACE_ENTRIES = 500
_WORD = 8


@struct
class StackState(Structure):
    """The deepest stack. `sequence` is odd while it is being replaced."""

    max_size: u64  # depth of the deepest stack in bytes; a number written to stack_max_size replaces it
    sequence: u64
    count: u64
    dump: array[u64, 500]  # addresses, innermost first
    index: array[u64, 500]  # the depth of each: bytes from the top of the stack


@native(inline=True)
def own_stack_top(sp: u64) -> u64:
    """The end of the thread's own stack; 0 if `sp` is not on it."""
    task = current()
    return task.stack + task.stack_size if stack_field != 0 and sp - task.stack < task.stack_size else 0


@native(noinline=True)
def replace_stack(state: ptr[StackState], point: ptr[StackPoint], top: u64) -> void:
    """Store the stack from `point` outwards."""
    reading: Reading = zeroed
    is_exact = True
    count: u64 = 0
    while count < STACK_TRACE_ENTRIES and point.sp < top:
        state.dump[count] = point.ip
        state.index[count] = top - point.sp + _WORD
        count += 1
        if not step_to_known(point, addressof(reading), is_exact):
            break
        is_exact = reading.is_signal_frame != 0
    state.count = count


@native(noinline=True)
def check_stack(state: ptr[StackState], ip: u64, regs: ptr[pt_regs], top: u64) -> void:
    sequence = volatile_load(addressof(state.sequence))
    if sequence & 1 != 0 or not atomic_cas(addressof(state.sequence), sequence, sequence + 1, "acq_rel"):
        return
    size = top - regs.sp + _WORD
    if size > volatile_load(addressof(state.max_size)):
        volatile_store(addressof(state.max_size), size)
        point: StackPoint = zeroed
        point.ip = ip
        point.sp = regs.sp
        point.bp = regs.bp
        replace_stack(state, addressof(point), top)
    store(addressof(state.sequence), sequence + 2, "release")


@native(cc="preserve_most")
def stack_trace_call(probe: ptr[Probe], ip: u64, parent_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    state = cast(ptr[StackState], probe.action)
    top = own_stack_top(regs.sp)
    if likely(top == 0 or top - regs.sp + _WORD <= volatile_load(addressof(state.max_size))):
        return 0
    check_stack(state, ip, regs, top)
    return 0


FUNCTIONS = (stack_trace_call,)
