"""The breakpoints of kprobes: the consumer of SIGTRAP, and what runs off its frame (KP-36..44).

A place whose handlers are all native runs them on the signal's frame, on a pt_regs made from it. Any other is sent to its
detour (kprobes.x86_64.detour), which calls `kprobe_detour_hit` as an ordinary function of the interrupted thread. Either
way asynchronous signals stay blocked while the instruction is executed in its slot, and only then.
"""

from __future__ import annotations

from ftrace.dispatch import pt_regs
from kprobes.dispatch import STEP_IT, begin, children_of, count_misses, end_step, enter, leave, out_of_line
from kprobes.records import HIT_SS, POST_DUE, REENTER, Record
from kprobes.table import find_record, find_slot
from sandbox.contexts import NMI
from sandbox.native import (
    addressof,
    array,
    bool_,
    cast,
    extern,
    fn,
    i64,
    native,
    null,
    ptr,
    syscall,
    u32,
    u64,
    void,
    zeroed,
)
from sandbox.signals import ucontext
from sandbox.tasks import ASYNCHRONOUS, Task, current

task_get = extern("task_get", fn[ptr[Task]])

_SYS_RT_SIGPROCMASK = 14
_SIG_BLOCK, _SIG_SETMASK = 0, 2
_USER_CS, _USER_SS = 0x33, 0x2B


@native
def regs_from(context: ptr[ucontext], regs: ptr[pt_regs]) -> void:
    """The interrupted registers as a pt_regs."""
    regs.r15 = context.r15
    regs.r14 = context.r14
    regs.r13 = context.r13
    regs.r12 = context.r12
    regs.bp = context.bp
    regs.bx = context.bx
    regs.r11 = context.r11
    regs.r10 = context.r10
    regs.r9 = context.r9
    regs.r8 = context.r8
    regs.ax = context.ax
    regs.cx = context.cx
    regs.dx = context.dx
    regs.si = context.si
    regs.di = context.di
    regs.orig_ax = 0xFFFF_FFFF_FFFF_FFFF
    regs.ip = context.ip
    regs.cs = _USER_CS
    regs.flags = context.eflags
    regs.sp = context.sp
    regs.ss = _USER_SS


@native
def regs_to(regs: ptr[pt_regs], context: ptr[ucontext]) -> void:
    """Let the interrupted thread go on with these registers."""
    context.r15 = regs.r15
    context.r14 = regs.r14
    context.r13 = regs.r13
    context.r12 = regs.r12
    context.bp = regs.bp
    context.bx = regs.bx
    context.r11 = regs.r11
    context.r10 = regs.r10
    context.r9 = regs.r9
    context.r8 = regs.r8
    context.ax = regs.ax
    context.cx = regs.cx
    context.dx = regs.dx
    context.si = regs.si
    context.di = regs.di
    context.ip = regs.ip
    context.eflags = regs.flags
    context.sp = regs.sp


@native
def trap_hit(task: ptr[Task], record: ptr[Record], context: ptr[ucontext]) -> void:
    """All handlers are native: here and now."""
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    level = task.context
    task.context = NMI
    result = begin(task, record, addressof(regs))
    task.context = level
    regs_to(addressof(regs), context)
    if result == STEP_IT:
        task.step_mask = context.mask
        context.mask |= ASYNCHRONOUS


@native
def trap_step(task: ptr[Task], record: ptr[Record], context: ptr[ucontext]) -> void:
    """The breakpoint behind the copied instruction."""
    if task.stepping != cast(u64, record):
        context.ip = record.address + record.length
        return
    children = children_of(record)
    if task.kprobe_status == HIT_SS and children.has_post != 0 and children.foreign != 0:
        task.kprobe_status = POST_DUE
        context.ip = record.detour
        return
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    level = task.context
    task.context = NMI
    end_step(task, record, addressof(regs))
    task.context = level
    regs_to(addressof(regs), context)
    context.mask = task.step_mask


@native
def pass_over(record: ptr[Record], regs: ptr[pt_regs]) -> void:
    """A hit in a thread without a task, which there is no record left for: missed."""
    count_misses(children_of(record))
    if out_of_line(record, children_of(record), regs) != 0:
        regs.ip = record.slot


@native
def trap_without_task(record: ptr[Record], context: ptr[ucontext], stepped: bool_) -> void:
    if stepped:
        context.ip = record.address + record.length
        return
    regs: pt_regs = zeroed
    regs_from(context, addressof(regs))
    pass_over(record, addressof(regs))
    regs_to(addressof(regs), context)


@native
def kprobe_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A breakpoint: of a probed place, of a slot, or not ours."""
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
    outer = enter(task)
    if stepped:
        trap_step(task, record, context)
    elif children_of(record).foreign != 0 and task.kprobe == 0:
        context.ip = record.detour
    else:
        trap_hit(task, record, context)
    leave(task, outer)
    return True


@native
def detour_begin(task: ptr[Task], record: ptr[Record], regs: ptr[pt_regs]) -> void:
    """The hit itself, in the interrupted thread's own course."""
    level = task.context
    task.context = NMI
    if begin(task, record, regs) == STEP_IT:
        mask: array[u64, 2] = zeroed
        mask[0] = ASYNCHRONOUS
        old = cast(i64, addressof(mask[1]))
        syscall(_SYS_RT_SIGPROCMASK, _SIG_BLOCK, cast(i64, addressof(mask[0])), old, 8, 0, 0)
        task.step_mask = mask[1]
    task.context = level


@native
def detour_end(task: ptr[Task], record: ptr[Record], regs: ptr[pt_regs]) -> void:
    """The post_handlers, with signals as they were before the step."""
    syscall(_SYS_RT_SIGPROCMASK, _SIG_SETMASK, cast(i64, addressof(task.step_mask)), 0, 8, 0, 0)
    level = task.context
    task.context = NMI
    end_step(task, record, regs)
    task.context = level


@native
def kprobe_detour_hit(regs: ptr[pt_regs], record: ptr[Record]) -> void:
    """What a detour calls; it goes on with `regs`, ip and sp included."""
    task = task_get()
    if task == null:
        pass_over(record, regs)
        return
    outer = enter(task)
    if task.kprobe_status == POST_DUE and task.stepping == cast(u64, record):
        detour_end(task, record, regs)
    else:
        detour_begin(task, record, regs)
    leave(task, outer)


@native
def kprobe_fault(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """An instruction has faulted in its slot, or in a jump's detour: let everyone see it where it was probed (KP-87)."""
    record = find_slot(context.ip)
    if record == null or (context.ip != record.slot and context.ip != record.boosted):
        copied = find_record(context.ip)
        if copied != null:
            context.ip = copied.address
        return False
    task = current()
    if task != null and task.stepping == cast(u64, record):
        task.stepping = 0
        context.mask = task.step_mask
        if task.kprobe_status == REENTER:
            task.kprobe = task.outer_kprobe
            task.kprobe_status = task.outer_status
        else:
            task.kprobe = 0
            task.kprobe_status = 0
    context.ip = record.address
    return False
