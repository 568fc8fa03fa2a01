"""Hits of jump-optimised probes: the function that their detours call."""

from __future__ import annotations

from ftrace.x86_64.pt_regs import pt_regs
from kprobes.hit.dispatch import children_of, count_misses, enter, leave, run_all_pres
from kprobes.hit.kretprobe_entry import Hook
from kprobes.hit.records import Record
from kprobes.hit.running import finish, is_running, start
from sandbox.native import addressof, cast, extern, fn, native, null, ptr, u64, zeroed
from sandbox.threads.tasks import Task, current

task_get = extern("task_get", fn[ptr[Task]])


@native(noinline=True)
def hit_without_task(record: ptr[Record]) -> ptr[Task]:
    """Get a record for a thread at its first hit; null, with a miss counted, if none is free."""
    task = task_get()
    if task == null:
        count_misses(children_of(record))
    return task


@native
def kprobe_optimized_hit(regs: ptr[pt_regs], record: ptr[Record]) -> u64:
    """Called by the detour: call the pre_handlers of all enabled children, newest first, whatever they return.

    Returns 1 if the return of this call has been hooked, so that it has to continue in the place's return stub.
    """
    hooked: u64 = 0
    task = current()
    if task == null:
        task = hit_without_task(record)
        if task == null:
            return 0
    running = is_running(task, regs.sp)
    before = enter(task)
    children = children_of(record)
    if running:
        count_misses(children)
    else:
        regs.ip = record.address + 1
        hook: Hook = zeroed
        hook.record = record
        start(task, cast(u64, record), cast(u64, addressof(hook)))
        run_all_pres(task, children, regs, addressof(hook))
        hooked = cast(u64, hook.node != null and not hook.returns_by_slot)
        finish(task)
    leave(task, before)
    return hooked
