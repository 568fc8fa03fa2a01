"""Calling handlers from a breakpoint: the context that they run in, and C code."""

from __future__ import annotations

from sandbox.native import Structure, bool_, extern, fn, i32, native, ptr, struct, u32, u64, void
from sandbox.threads.contexts import NMI
from sandbox.threads.tasks import Task

ON_FRAME, OFF_FRAME = 1, 2
"""Task.trap: whether handlers run on the frame of the breakpoint's signal."""

in_signal_handler = extern("in_signal_handler", fn[bool_])
call_foreign = extern("kprobe_call_foreign", fn[i32, u64, u64, u64, u64, u64, u64])


@native
def call(task: ptr[Task], code: u64, a: u64, b: u64, c: u64, d: u64) -> i32:
    """Call C code, from which every register and errno are kept."""
    saved = task.errno[0]
    result = call_foreign(code, a, b, c, d, 0)
    task.errno[0] = saved
    return result


@struct
class Outer(Structure):
    """What a task was in before a breakpoint's handlers run."""

    mask: u64
    trap: u32
    level: u32
    context: u32


@native
def into_nmi(task: ptr[Task], trap: u32, mask: u64, outer: ptr[Outer]) -> void:
    """Handlers of a breakpoint are in NMI context (FT-56); `mask`: the signals that the interrupted code blocks."""
    outer.mask = task.trap_mask
    outer.trap = task.trap
    outer.level = task.trap_level
    outer.context = task.context
    task.trap_mask = mask
    task.trap_level = task.context
    task.trap = trap
    task.context = NMI


@native
def out_of_nmi(task: ptr[Task], outer: ptr[Outer]) -> void:
    """The end of what `into_nmi` began."""
    task.trap_mask = outer.mask
    task.trap = outer.trap
    task.trap_level = outer.level
    task.context = outer.context
