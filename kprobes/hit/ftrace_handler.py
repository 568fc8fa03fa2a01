"""Hits of kprobes on ftrace locations: the callback of their shared ftrace_ops, as kprobe_ftrace_handler()."""

from __future__ import annotations

from ftrace.hit.dispatch import Hit
from ftrace.hit.records import KPROBE
from ftrace.hit.recursion import FTRACE, trylock, unlock
from ftrace.x86_64.pt_regs import pt_regs
from ftrace.x86_64.stubs import SITE_SIZE
from kprobes.hit.control import get_kprobe_ctlblk
from kprobes.hit.dispatch import children_of, count_misses, run_posts, run_pres
from kprobes.hit.kretprobe_entry import Hook
from kprobes.hit.records import HIT_SSDONE, Record
from kprobes.hit.running import IN_STUB, finish, is_running_in_stub, start
from kprobes.hit.table import find_record
from sandbox.native import addressof, bool_, cast, global_var, native, null, ptr, u32, u64, void, zeroed
from sandbox.threads.tasks import Task, current

killed = global_var(u64, 0, name="kprobe_ftrace_killed")
"""1 once ftrace is dead; then kprobes on ftrace locations are dead, too."""


@native
def ftrace_hit(task: ptr[Task], record: ptr[Record], regs: ptr[pt_regs], ip: u64, hit: ptr[Hit]) -> void:
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
