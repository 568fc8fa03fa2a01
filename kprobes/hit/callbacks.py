"""Hits that arrive by a call instead of a breakpoint: from ftrace's stubs, and from the detours of jump-optimised probes.

The first is the callback of the kprobes' shared ftrace_ops, as kprobe_ftrace_handler(); the second is as optimized_callback().
"""

from __future__ import annotations

from ftrace.hit.dispatch import Hit
from ftrace.hit.records import KPROBE
from ftrace.hit.recursion import FTRACE, trylock, unlock
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.hit.x86_64.stubs import SITE_SIZE
from kprobes.hit.control import IN_STUB, finish, get_kprobe_ctlblk, is_running, is_running_in_stub, start
from kprobes.hit.dispatch import children_of, count_misses, enter, leave, run_all_pres, run_posts, run_pres
from kprobes.hit.kretprobe_entry import Hook
from kprobes.hit.records import HIT_SSDONE, PlaceRecord, find_record
from sandbox.native import *
from sandbox.threads.tasks import Task, current

killed = global_var(u64, 0, name="kprobe_ftrace_killed")
"""1 once ftrace is dead; then kprobes on ftrace locations are dead, too."""


@native
def ftrace_hit(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs], ip: u64, hit: ptr[Hit]) -> void:
    """Handle a hit, with the recursion lock held."""
    kcb = get_kprobe_ctlblk(task)
    children = children_of(record)
    if children.count == 0:
        return
    if is_running_in_stub(task, regs.sp):
        count_misses(children)
        return
    resume = regs.ip
    regs.ip = ip + 1
    hook: Hook = zeroed
    hook.record = record
    hook.hit = hit
    start(task, cast(u64, record), cast(u64, addressof(hook)) | IN_STUB)
    if run_pres(task, children, regs, addressof(hook)) == 0:
        regs.ip = ip + SITE_SIZE
        kcb.status = HIT_SSDONE
        run_posts(task, children, regs)
        regs.ip = resume
    finish(task)


@native
def is_for_another(hit: ptr[Hit]) -> bool_:
    """Whether another ops serves this hit. During a move both are in the list; a probe's own ops, or else the first, serves."""
    before = True
    for index in range(hit.probes.count):
        item = addressof(hit.probes.items[index])
        if item.probe.kind & KPROBE != 0:
            return True
        if item == hit.item:
            before = False
        elif before and item.entry == hit.item.entry:
            return True
    return False


@native
def kprobe_ftrace_handler(ip: u64, parent_ip: u64, ops: u64, regs: ptr[pt_regs], hit: ptr[Hit]) -> u32:
    """The callback of both ops. If the recursion lock is taken, the hit is dropped and not counted."""
    record = find_record(ip)
    if record == null or killed != 0 or (hit.probes.count > 1 and is_for_another(hit)):
        return 0
    task = current()
    bit = trylock(task, FTRACE)
    if bit == 0:
        return 0
    ftrace_hit(task, record, regs, ip, hit)
    unlock(task, bit)
    return 0


task_get = extern("task_get", fn[ptr[Task]])


@native(noinline=True)
def hit_without_task(record: ptr[PlaceRecord]) -> ptr[Task]:
    """Get a record for a thread at its first hit; null, with a miss counted, if none is free."""
    task = task_get()
    if task == null:
        count_misses(children_of(record))
    return task


@native
def kprobe_optimized_hit(regs: ptr[pt_regs], record: ptr[PlaceRecord]) -> u64:
    """Called by the detour: call the pre_handlers of all enabled children, newest first, whatever they return.

    Returns 1 if the return of this call has been hooked, so that it has to continue in the place's return stub.
    """
    hooked: u64 = 0
    task = current()
    if task == null:
        task = hit_without_task(record)
        if task == null:
            return 0
    here: array[u64, 1] = zeroed
    running = is_running(task, regs.sp)
    before = enter(task, addressof(here[0]))
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
