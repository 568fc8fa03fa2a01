"""A kprobe hit: calling the handlers of a place and executing the probed instruction.

`begin` works on a pt_regs and returns how to continue. It serves hits whose handlers run on the signal's frame and hits that
have been sent to a detour. Re-entrancy is tracked for each task: `Task.kprobe` is current_kprobe.
"""

from __future__ import annotations

from ftrace.hit.left_hits import begin_hit
from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.calling import call, python_barred
from kprobes.hit.control import finish, get_kprobe_ctlblk, start, unmark
from kprobes.hit.emulate import carry_out
from kprobes.hit.kretprobe_entry import Hook, enter_kretprobe
from kprobes.hit.records import (
    EMULATE,
    HIT_SS,
    HIT_SSDONE,
    OFF,
    POST_CALLBACK,
    POST_FOREIGN,
    POST_PYTHON,
    PRE_CALLBACK,
    PRE_FOREIGN,
    PRE_PYTHON,
    REENTER,
    RETURN,
    SYSCALL,
    Child,
    ChildList,
    PlaceRecord,
)
from sandbox.native import *
from sandbox.threads.tasks import IN_NO_LIST, Task

RESUME, STEP_IT = 0, 1
"""Results of `begin`. RESUME: continue at regs.ip. STEP_IT: regs.ip is the slot, whose trailing breakpoint ends the step."""


unrecoverable = extern("kprobe_unrecoverable", fn[void])
"""Reports an unrecoverable kprobe and ends the process."""


@native
def enter(task: ptr[Task], here: ptr[u64]) -> u64:
    """Mark the task as inside, so that unregistering a kprobe waits for it. Returns the argument for `leave`.

    `here`: a word of the stack for begin_hit().
    """
    kcb = get_kprobe_ctlblk(task)
    outer = task.rec
    before = cast(u64, kcb.entered) << 32 | cast(u64, outer)
    kcb.entered = outer
    begin_hit(task, outer, here)
    if outer == 0:
        task.list = IN_NO_LIST
        task.serial += 1
    else:
        task.nested += 1
    signal_fence()
    return before


@native
def leave(task: ptr[Task], before: u64) -> void:
    """Restore the mark from before `enter`."""
    kcb = get_kprobe_ctlblk(task)
    signal_fence()
    kcb.entered = cast(u32, before >> 32)
    unmark(task, cast(u32, before))


@native
def count_miss(child: ptr[Child]) -> void:
    atomic_add(addressof(child.nmissed), 1, "relaxed")


@native
def count_misses(children: ptr[ChildList]) -> void:
    """Count a miss for every child, including disabled ones."""
    for index in range(children.count):
        count_miss(children.children[index])


@native
def run_pre(task: ptr[Task], child: ptr[Child], regs: ptr[pt_regs], hook: ptr[Hook]) -> i32:
    """One child's pre_handler; 0 if it has none."""
    kcb = get_kprobe_ctlblk(task)
    kcb.child = cast(u64, child)
    if child.kind & RETURN != 0:
        enter_kretprobe(task, child, regs, hook)
        return 0
    code = cast(u64, child.pre)
    if code == 0:
        return 0
    if child.kind & PRE_FOREIGN == 0:
        return child.pre(child.pre_cookie, cast(u64, regs))
    if child.kind & PRE_PYTHON == 0:
        return call(task, code, child.pre_cookie, cast(u64, regs), 0, 0)
    if python_barred(regs):
        count_miss(child)
        return 0
    if child.kind & PRE_CALLBACK != 0:
        return call(task, code, child.pre_cookie, cast(u64, regs), 0, 0)
    return call(task, code, child.pre_cookie, 0, 0, cast(u64, regs))


@native
def run_pres(task: ptr[Task], children: ptr[ChildList], regs: ptr[pt_regs], hook: ptr[Hook]) -> i32:
    """Call the children's pre_handlers, newest first, until one returns non-zero."""
    for index in range(children.count):
        child = children.children[index]
        if child.flags & OFF == 0 and run_pre(task, child, regs, hook) != 0:
            return 1
    return 0


@native
def run_all_pres(task: ptr[Task], children: ptr[ChildList], regs: ptr[pt_regs], hook: ptr[Hook]) -> void:
    """Call all pre_handlers, whatever they return, as an optimised probe does."""
    for index in range(children.count):
        child = children.children[index]
        if child.flags & OFF == 0:
            run_pre(task, child, regs, hook)


@native
def run_post(task: ptr[Task], child: ptr[Child], regs: ptr[pt_regs]) -> void:
    kcb = get_kprobe_ctlblk(task)
    code = cast(u64, child.post)
    if code == 0:
        return
    kcb.child = cast(u64, child)
    if child.kind & POST_FOREIGN == 0:
        child.post(child.post_cookie, cast(u64, regs), 0)
    elif child.kind & POST_PYTHON == 0:
        call(task, code, child.post_cookie, cast(u64, regs), 0, 0)
    elif python_barred(regs):
        if child.kind & PRE_PYTHON == 0:  # otherwise run_pre() has counted this hit
            count_miss(child)
    elif child.kind & POST_CALLBACK != 0:
        call(task, code, child.post_cookie, cast(u64, regs), 0, 0)
    else:
        call(task, code, child.post_cookie, 0, 0, cast(u64, regs))


@native
def run_posts(task: ptr[Task], children: ptr[ChildList], regs: ptr[pt_regs]) -> void:
    """Call the children's post_handlers, newest first."""
    for index in range(children.count):
        child = children.children[index]
        if child.flags & OFF == 0:
            run_post(task, child, regs)


@native
def children_of(record: ptr[PlaceRecord]) -> ptr[ChildList]:
    """The present children. The task must be marked as inside."""
    return load(addressof(record.children), "acquire")


DONE, ELSEWHERE, IN_SLOT = 0, 1, 2
"""Results of `out_of_line`."""


@native
def out_of_line(record: ptr[PlaceRecord], children: ptr[ChildList], regs: ptr[pt_regs]) -> u32:
    """Execute the instruction without another trap, if possible.

    DONE: it has been emulated. ELSEWHERE: regs.ip is a copy that jumps back; if emulation finds no memory at an operand, the
    copy faults instead. IN_SLOT: it must be single-stepped.
    """
    if record.optimized != 0:
        regs.ip = record.optimized
        return ELSEWHERE
    if record.execution == EMULATE:
        if carry_out(addressof(record.emulated), regs, record.address + record.length):
            return DONE
        regs.ip = record.slot
        return ELSEWHERE
    if record.boosted != 0 and children.has_post == 0:
        regs.ip = record.boosted
        return ELSEWHERE
    return IN_SLOT


@native
def missed(task: ptr[Task], record: ptr[PlaceRecord], children: ptr[ChildList], regs: ptr[pt_regs]) -> u32:
    """A hit while a kprobe is running: count a miss, and execute the instruction."""
    kcb = get_kprobe_ctlblk(task)
    count_misses(children)
    if out_of_line(record, children, regs) != IN_SLOT:
        return RESUME
    if record.execution == SYSCALL:
        regs.ip = record.boosted
        return RESUME
    if kcb.status == REENTER:
        unrecoverable()
        trap()
    kcb.outer_kprobe = task.kprobe
    kcb.outer_status = kcb.status
    kcb.outer_stepping = kcb.stepping
    task.kprobe = cast(u64, record)
    kcb.status = REENTER
    kcb.stepping = cast(u64, record)
    regs.ip = record.slot
    return STEP_IT


@native
def begin(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> u32:
    """Handle a hit. `regs`: the registers before the instruction."""
    kcb = get_kprobe_ctlblk(task)
    children = children_of(record)
    if task.kprobe != 0:
        return missed(task, record, children, regs)
    regs.ip = record.address + 1
    hook: Hook = zeroed
    hook.record = record
    start(task, cast(u64, record), cast(u64, addressof(hook)))
    if run_pres(task, children, regs, addressof(hook)) != 0:
        finish(task)
        return RESUME
    how = out_of_line(record, children, regs)
    if how != IN_SLOT:
        if how == DONE:
            kcb.status = HIT_SSDONE
            run_posts(task, children, regs)
        finish(task)
        return RESUME
    regs.ip = record.slot
    if record.execution == SYSCALL:
        finish(task)
        return RESUME
    kcb.frame = regs.sp & ~cast(u64, 7)
    kcb.status = HIT_SS
    kcb.stepping = cast(u64, record)
    return STEP_IT


@native
def back_to_outer(task: ptr[Task]) -> void:
    """Restore the outer hit after `missed`. A signal may have arrived just before the outer one was to be stepped itself."""
    kcb = get_kprobe_ctlblk(task)
    task.kprobe = kcb.outer_kprobe
    kcb.status = kcb.outer_status
    kcb.stepping = kcb.outer_stepping


@native
def end_step(task: ptr[Task], record: ptr[PlaceRecord], regs: ptr[pt_regs]) -> void:
    """The instruction has been executed in its slot: call the post_handlers, or return to the outer hit."""
    kcb = get_kprobe_ctlblk(task)
    status = kcb.status
    regs.ip = record.address + record.length
    if status == REENTER:
        back_to_outer(task)
        return
    kcb.stepping = 0
    here: array[u64, 1] = zeroed
    start(task, cast(u64, record), cast(u64, addressof(here[0])))
    kcb.status = HIT_SSDONE
    run_posts(task, children_of(record), regs)
    finish(task)
