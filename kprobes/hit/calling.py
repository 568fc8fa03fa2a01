"""Calling handlers from a breakpoint: NMI context, C code, and the signal frame's registers as a pt_regs."""

from __future__ import annotations

from ftrace.hit.x86_64.pt_regs import USER_CS, USER_SS, pt_regs
from kprobes.hit.control import get_kprobe_ctlblk
from kprobes.hit.records import PlaceRecord
from sandbox.native import *
from sandbox.threads.contexts import NMI
from sandbox.threads.signals import ucontext
from sandbox.threads.tasks import Task

python_barred = extern("python_barred", fn[bool_, ptr[pt_regs]])
in_sub_interpreter = extern("in_sub_interpreter_now", fn[bool_])
call_foreign = extern("ftrace_call_foreign_preserving", fn[i32, u64, u64, u64, u64, u64, u64])


@native
def call(task: ptr[Task], code: u64, a: u64, b: u64, c: u64, d: u64) -> i32:
    """Call C code; every register and errno are preserved."""
    saved = task.errno[0]
    result = call_foreign(code, a, b, c, d, 0)
    task.errno[0] = saved
    return result


@struct
class Outer(Structure):
    """A task's context before a breakpoint's handlers run."""

    mask: u64
    trap: u32
    level: u32
    context: u32


@native
def into_nmi(task: ptr[Task], trap: u32, mask: u64, outer: ptr[Outer]) -> void:
    """Enter NMI context, in which a breakpoint's handlers run. `mask`: the signals that the interrupted code blocks."""
    kcb = get_kprobe_ctlblk(task)
    outer.mask = kcb.trap_mask
    outer.trap = kcb.trap
    outer.level = kcb.trap_level
    outer.context = task.context
    kcb.trap_mask = mask
    kcb.trap_level = task.context
    kcb.trap = trap
    task.context = NMI


@native
def out_of_nmi(task: ptr[Task], outer: ptr[Outer]) -> void:
    """Restore the context from before `into_nmi`."""
    kcb = get_kprobe_ctlblk(task)
    kcb.trap_mask = outer.mask
    kcb.trap = outer.trap
    kcb.trap_level = outer.level
    task.context = outer.context


_BELOW = 152

kprobe_detour_from_frame = extern("kprobe_detour_from_frame", fn[void])


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
    regs.cs = USER_CS
    regs.flags = context.eflags
    regs.sp = context.sp
    regs.ss = USER_SS


@native
def regs_to(regs: ptr[pt_regs], context: ptr[ucontext]) -> void:
    """Let the interrupted thread continue with these registers."""
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
def into_detour(context: ptr[ucontext], record: ptr[PlaceRecord], ip: u64) -> void:
    """Let the interrupted thread continue in a place's detour; unwinders find it at `ip`."""
    context.sp -= _BELOW
    words = cast(ptr[u64], context.sp)
    words[2] = ip
    words[1] = cast(u64, record)
    context.ip = cast(u64, kprobe_detour_from_frame)
