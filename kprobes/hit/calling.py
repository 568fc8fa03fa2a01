"""Calling handlers from a breakpoint: the context that they run in, and C code."""

from __future__ import annotations

from ftrace.x86_64.pt_regs import pt_regs
from kprobes.hit.control import get_kprobe_ctlblk
from sandbox.native import Structure, bool_, extern, fn, i32, native, ptr, struct, u32, u64, void
from sandbox.threads.contexts import NMI
from sandbox.threads.tasks import Task

in_signal_handler = extern("in_signal_handler", fn[bool_, ptr[pt_regs]])
call_foreign = extern("ftrace_call_foreign_keeping", fn[i32, u64, u64, u64, u64, u64, u64])


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
