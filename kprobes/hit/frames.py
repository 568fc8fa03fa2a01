"""Conversion between a signal frame and a pt_regs."""

from __future__ import annotations

from ftrace.x86_64.pt_regs import USER_CS, USER_SS, pt_regs
from kprobes.hit.records import Record
from sandbox.native import cast, extern, fn, native, ptr, u64, void
from sandbox.threads.signals import ucontext

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
def into_detour(context: ptr[ucontext], record: ptr[Record], ip: u64) -> void:
    """Let the interrupted thread continue in a place's detour; unwinders find it at `ip`."""
    context.sp -= _BELOW
    words = cast(ptr[u64], context.sp)
    words[2] = ip
    words[1] = cast(u64, record)
    context.ip = cast(u64, kprobe_detour_from_frame)
