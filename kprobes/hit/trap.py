"""Breakpoint hits: the consumer of SIGTRAP, and the part that runs outside of the signal's frame.

If all handlers of a place are native, they run on the signal's frame, on a pt_regs made from it. Otherwise the thread is sent
to the place's detour (kprobes.x86_64.detour), which calls `kprobe_detour_hit` as an ordinary function. In both cases
asynchronous signals are blocked only while the instruction is executed in its slot.
"""

from __future__ import annotations

from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.calling import Outer, into_detour, into_nmi, out_of_nmi, regs_from, regs_to
from kprobes.hit.control import OFF_FRAME, ON_FRAME, get_kprobe_ctlblk, is_running
from kprobes.hit.dispatch import (
    IN_SLOT,
    STEP_IT,
    begin,
    children_of,
    count_misses,
    end_step,
    enter,
    leave,
    out_of_line,
)
from kprobes.hit.faulting import handler_fault_in_detour, run_faults
from kprobes.hit.records import (
    FAULT_DUE,
    HANDLER_FAULT_DUE,
    HIT_SS,
    POST_DUE,
    SYSCALL,
    PlaceRecord,
    find_record,
    find_slot,
)
from sandbox.native import *
from sandbox.threads.signals import ucontext
from sandbox.threads.system_calls import block_signals, set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS, Task

task_get = extern("task_get", fn[ptr[Task]])


@native
def trap_hit(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> void:
    """Handle a hit on the signal's frame: all handlers are native."""
    kcb = get_kprobe_ctlblk(task)
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    outer: Outer = zeroed
    into_nmi(task, ON_FRAME, context.mask, addressof(outer))
    result = begin(task, record, addressof(regs))
    out_of_nmi(task, addressof(outer))
    regs_to(addressof(regs), context)
    if result == STEP_IT:
        kcb.step_mask = context.mask
        context.mask |= ASYNCHRONOUS


@native
def system_call_done(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> void:
    """A system call in a slot has returned, without being marked as stepped: call its post_handlers if they may run."""
    kcb = get_kprobe_ctlblk(task)
    if task.kprobe == 0 and children_of(record).has_post != 0:
        task.kprobe = cast(u64, record)
        kcb.status = HIT_SS
        kcb.stepping = cast(u64, record)
        kcb.step_mask = context.mask
        context.mask |= ASYNCHRONOUS


@native
def trap_step(task: ptr[Task], record: ptr[PlaceRecord], context: ptr[ucontext]) -> void:
    """The breakpoint after a copied instruction has been hit."""
    kcb = get_kprobe_ctlblk(task)
    if record.execution == SYSCALL:
        system_call_done(task, record, context)
    if kcb.stepping != cast(u64, record):
        context.ip = record.address + record.length
        return
    children = children_of(record)
    if kcb.status == HIT_SS and children.has_post != 0 and children.foreign != 0:
        kcb.status = POST_DUE
        into_detour(context, record, record.address + record.length)
        return
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    outer: Outer = zeroed
    mask = kcb.step_mask  # a probe that a post_handler hits may be stepped, too
    into_nmi(task, ON_FRAME, mask, addressof(outer))
    end_step(task, record, addressof(regs))
    out_of_nmi(task, addressof(outer))
    regs_to(addressof(regs), context)
    context.mask = mask


@native
def pass_over(record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """A hit in a thread for which no record is free: a miss."""
    count_misses(children_of(record))
    if out_of_line(record, children_of(record), regs) == IN_SLOT:
        regs.ip = record.slot


@native
def trap_without_task(record: ptr[PlaceRecord], context: ptr[ucontext], stepped: bool_) -> void:
    if stepped:
        context.ip = record.address + record.length
        return
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    pass_over(record, addressof(regs))
    regs_to(addressof(regs), context)


@native
def kprobe_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The consumer of SIGTRAP: a breakpoint at a probed place, in a slot, or not ours."""
    address = context.ip - 1
    record = find_record(address)
    stepped = record == null
    if record == null:
        record = find_slot(address)
        if record == null or record.step_end != address:
            return False
    task = task_get()
    if task == null:
        trap_without_task(record, context, stepped)
        return True
    here: array[u64, 1] = zeroed
    ends_step = stepped and get_kprobe_ctlblk(task).stepping == cast(u64, record)
    running = ends_step or is_running(task, context.sp)
    before = enter(task, addressof(here[0]))
    if stepped:
        trap_step(task, record, context)
    elif children_of(record).foreign != 0 and not running:
        context.ip = record.detour
    else:
        trap_hit(task, record, context)
    leave(task, before)
    return True


@native
def detour_begin(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """Handle the hit itself, as a function of the interrupted thread."""
    kcb = get_kprobe_ctlblk(task)
    outer: Outer = zeroed
    into_nmi(task, OFF_FRAME, 0, addressof(outer))
    if begin(task, record, regs) == STEP_IT:
        kcb.step_mask = block_signals(ASYNCHRONOUS)
    out_of_nmi(task, addressof(outer))


@native
def detour_end(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """Call the post_handlers."""
    kcb = get_kprobe_ctlblk(task)
    set_signal_mask(kcb.step_mask)
    outer: Outer = zeroed
    into_nmi(task, OFF_FRAME, 0, addressof(outer))
    end_step(task, record, regs)
    out_of_nmi(task, addressof(outer))


@native
def detour_fault(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """The instruction has faulted in its copy: call the fault_handlers. If none handles the fault, it is repeated."""
    kcb = get_kprobe_ctlblk(task)
    set_signal_mask(kcb.step_mask)
    kcb.stepping = 0
    outer: Outer = zeroed
    into_nmi(task, OFF_FRAME, 0, addressof(outer))
    regs.ip = record.address
    handled = run_faults(task, record, regs)
    out_of_nmi(task, addressof(outer))
    if not handled:
        kcb.fault_passed = cast(u64, record)
        regs.ip = record.slot


@native
def kprobe_detour_hit(regs: ptr[pt_regs], record: ptr[PlaceRecord]) -> void:
    """Called by a detour, which continues with `regs`, including ip and sp."""
    task = task_get()
    if task == null:
        pass_over(record, regs)
        return
    kcb = get_kprobe_ctlblk(task)
    here: array[u64, 1] = zeroed
    if kcb.status & (POST_DUE | FAULT_DUE) == 0 or kcb.stepping != cast(u64, record):
        is_running(task, regs.sp)
    before = enter(task, addressof(here[0]))
    if kcb.status & HANDLER_FAULT_DUE != 0:
        handler_fault_in_detour(task, record, regs)
    elif kcb.status == POST_DUE and kcb.stepping == cast(u64, record):
        detour_end(task, record, regs)
    elif kcb.status == FAULT_DUE and kcb.stepping == cast(u64, record):
        detour_fault(task, record, regs)
    else:
        detour_begin(task, record, regs)
    leave(task, before)
