"""Faults in guarded calls: the signal becomes a return to the caller, where ftrace.fault_guard raises an exception."""

from __future__ import annotations

from ftrace.hit.nodes import below, entry_ip
from ftrace.hit.parking import EMPTY
from ftrace.hit.rethook import node_abandon
from sandbox.native import (
    Structure,
    addressof,
    array,
    atomic_add,
    bool_,
    cast,
    fn,
    global_var,
    native,
    null,
    ptr,
    struct,
    u32,
    u64,
    void,
)
from sandbox.threads.signals import ucontext
from sandbox.threads.tasks import Fault, Guard, Task, current

RANGES = 512
_CALLS = 32
"""Places in Fault.calls."""
_SI_ADDR = 16


@struct
class Range(Structure):
    """Code in which a fault ends the call and not the process."""

    start: u64
    end: u64


ranges = global_var(array[Range, RANGES], name="fault_ranges")
range_count = global_var(u64, 0, name="fault_range_count")
fault_count = global_var(u64, 0, name="fault_count")


@native
def is_guarded_code(ip: u64) -> bool_:
    for index in range(min(range_count, RANGES)):  # noqa: SIM110 (the language has no any())
        if ranges[index].start <= ip and ip < ranges[index].end:
            return True
    return False


@native
def note_calls(task: ptr[Task], fault: ptr[Fault], oldest: u64) -> void:
    """The entry addresses of the hooked calls inside the guarded one."""
    node = task.top
    fault.depth = 0
    for _ in range(_CALLS):
        if cast(u64, node) <= oldest or node == task.bottom:
            return
        if node.stub > EMPTY:  # else its entry handlers are still running, or the call has returned
            fault.calls[fault.depth] = entry_ip(node)
            fault.depth += 1
        node = below(node)


@native
def note_fault(task: ptr[Task], signal: u32, info: u64, context: ptr[ucontext], guard: ptr[Guard]) -> void:
    fault = addressof(task.fault)
    fault.signal = cast(u64, signal)
    fault.address = cast(ptr[u64], info + _SI_ADDR)[0]
    fault.in_probe = 1 if cast(u64, task.rec) != guard.rec else 0
    registers = addressof(context.r8)
    for index in range(18):
        fault.registers[index] = registers[index]
    note_calls(task, fault, guard.top)
    fault.pending = 1


@native
def leave_guard(context: ptr[ucontext], guard: ptr[Guard]) -> void:
    """Resume the interrupted thread as if the guarded call had returned 0."""
    context.bx = guard.bx
    context.bp = guard.bp
    context.r12 = guard.r12
    context.r13 = guard.r13
    context.r14 = guard.r14
    context.r15 = guard.r15
    context.ax = 0
    context.dx = 0
    context.sp = guard.sp + 8
    context.ip = guard.parent
    context.eflags &= ~cast(u64, 0x400)


leave_kprobe = global_var(u64, 0, name="leave_kprobe")
"""Address of a function (task, context) that ends what kprobes do in a thread; 0 before there are any."""


@native
def end_handlers(task: ptr[Task], context: ptr[ucontext]) -> void:
    """The handlers that a call was in do not go on."""
    task.kprobe = 0
    if leave_kprobe != 0:
        cast(fn[void, ptr[Task], ptr[ucontext]], leave_kprobe)(task, context)


@native
def fault_signal(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A synchronous signal: if a guarded call's own code raised it, the call is over."""
    task = current()
    if task == null or task.guard == addressof(task.guards[0]) or not is_guarded_code(context.ip):
        return False
    guard = cast(ptr[Guard], addressof(cast(ptr[Guard], task.guard)[-1]))
    note_fault(task, signal, info, context, guard)
    while cast(u64, task.top) > guard.top:
        node_abandon(task, task.top)
    task.list = 0
    task.rec = cast(u32, guard.rec)
    end_handlers(task, context)
    task.guard = guard
    leave_guard(context, guard)
    atomic_add(addressof(fault_count), 1, "acq_rel")
    return True
