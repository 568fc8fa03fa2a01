"""Calling C code from a hit, and ending one."""

from __future__ import annotations

from sandbox.native import bool_, extern, fn, i32, native, ptr, u64, void
from sandbox.tasks import Task

in_signal_handler = extern("in_signal_handler", fn[bool_])
call_foreign = extern("kprobe_call_foreign", fn[i32, u64, u64, u64, u64, u64, u64])


@native
def call(task: ptr[Task], code: u64, a: u64, b: u64, c: u64, d: u64) -> i32:
    """Call C code, from which every register and errno are kept."""
    saved = task.errno[0]
    result = call_foreign(code, a, b, c, d, 0)
    task.errno[0] = saved
    return result


@native
def finish(task: ptr[Task]) -> void:
    """No kprobe is running any more."""
    task.kprobe_status = 0
    task.kprobe = 0
