"""Faults in guarded code: the signal ends what faulted, and not the process.

A guarded call returns to its caller, where ftrace.core.fault_guard raises an exception. A guarded read, with which a handler
copies from a bad pointer, returns an errno, and is counted.
"""

from __future__ import annotations

from ftrace.hit.cancellation import handlers_left
from ftrace.hit.nodes import below, entry_ip
from ftrace.hit.parking import EMPTY
from ftrace.hit.rethook import node_abandon
from sandbox.native import *
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
    """The handlers that a call was in do not continue."""
    handlers_left(task)
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


GUARDED_READS = ("ftrace_probe_read", "ftrace_probe_read_str")
"""The functions that handlers call, from ftrace.hit.x86_64.guard."""

copy_words = extern("ftrace_probe_read", fn[i64, u64, u64, u64])
zero_words = extern("ftrace_probe_zero", fn[void])
read_failed = extern("ftrace_probe_failed", fn[void])
copy_text = extern("ftrace_probe_read_str", fn[i64, u64, u64, u64])
empty_text = extern("ftrace_probe_empty", fn[void])
reads_end = extern("ftrace_probe_end", fn[void])

read_faults = global_var(u64, 0, name="probe_read_faults")


@native(inline=True)
def within(ip: u64, first: u64, past: u64) -> bool_:
    return first <= ip and ip < past


@native
def read_fault(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A consumer of SIGSEGV and SIGBUS: a copy that faulted clears its destination, if that is mapped."""
    ip = context.ip
    if within(ip, cast(u64, copy_words), cast(u64, zero_words)):
        context.ip = cast(u64, zero_words)
    elif within(ip, cast(u64, copy_text), cast(u64, empty_text)):
        context.ip = cast(u64, empty_text)
    elif within(ip, cast(u64, zero_words), cast(u64, reads_end)):
        context.ip = cast(u64, read_failed)
        return True
    else:
        return False
    atomic_add(addressof(read_faults), 1, "relaxed")
    return True
