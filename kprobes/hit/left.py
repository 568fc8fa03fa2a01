"""Hits of kprobes that never end: handlers are left by longjmp, their own or that of a signal's handler that interrupts them.

The stack pointer is recorded when handlers are called; they and everything they call run below it. A hit at or above that
address on the same stack proves that the handlers have been left. A hit whose instruction is executed in a slot has been left
if no signal has interrupted a slot: only a signal's handler can run meanwhile.

A probe without a pre_handler has not seen a hit that is left before its post_handler is called: for it, this is a miss.
"""

from __future__ import annotations

from ftrace.hit.left_hits import REGISTER_IP, REGISTER_SP
from ftrace.hit.nodes import off_signal_stack, word_at
from ftrace.hit.records import SHARED_BUSY
from ftrace.hit.recursion import CREDIT, INSIDE
from kprobes.hit.calling import DETOUR_RECORD
from kprobes.hit.control import IN_STUB, NO_PREEMPTION, NOT_INSIDE, ON_FRAME, finish, get_kprobe_ctlblk, unmark
from kprobes.hit.dispatch import children_of, count_miss, enter, leave
from kprobes.hit.records import HIT_SSDONE, OFF, POST_DUE, RETURN, Child, find_record, find_slot
from sandbox.native import *
from sandbox.threads.signals import ucontext
from sandbox.threads.tasks import Task, current

on_one_stack = extern("on_one_stack", fn[bool_, u64, u64])
readable = extern("readable", fn[bool_, u64])
signal_frame = extern("signal_frame", fn[u64, u64])
forget_left = extern("forget_left", fn[void, ptr[Task], u64])
python_handlers_left = extern("python_handlers_left", fn[void, ptr[Task], u64])

_LOW_BITS = 7

_DEEP = 65536
"""Bytes of stack; handlers are assumed to use less."""

kprobes_abandoned = global_var(u64, 0, name="kprobes_abandoned")


@native
def has_only_post(child: ptr[Child]) -> bool_:
    """Whether it is by its post_handler that a probe sees a hit."""
    return (
        child.flags & OFF == 0 and child.kind & RETURN == 0 and cast(u64, child.pre) == 0 and cast(u64, child.post) != 0
    )


@native(noinline=True)
def miss_posts(task: ptr[Task], last: u64) -> void:
    """The hit whose post_handlers are due ends without them. `last`: the child whose post_handler was called last, or 0."""
    kcb = get_kprobe_ctlblk(task)
    here: array[u64, 1] = zeroed
    before = enter(task, addressof(here[0]))
    record = find_record(kcb.due)
    kcb.due = 0
    if record != null:
        children = children_of(record)
        seen = last != 0
        for index in range(children.count):
            child = children.children[index]
            if not seen and has_only_post(child):
                count_miss(child)
            if cast(u64, child) == last:
                seen = False
    leave(task, before)


@native
def end_without_posts(task: ptr[Task]) -> void:
    """A hit ends in the middle."""
    kcb = get_kprobe_ctlblk(task)
    kprobe = task.kprobe
    last: u64 = 0
    if kcb.status == HIT_SSDONE:
        last = kcb.child
    kcb.stepping = 0
    finish(task)
    if kcb.due != 0 and cast(u64, find_record(kcb.due)) == kprobe:
        miss_posts(task, last)


@native
def kprobe_faulted(task: ptr[Task], context: ptr[ucontext]) -> void:
    """A guarded call has faulted in a handler, which will not continue: undo what was set while it ran."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.trap == ON_FRAME:
        context.mask = kcb.trap_mask
    if kcb.trap != 0:
        task.context = kcb.trap_level
    kcb.trap = 0
    end_without_posts(task)


@native
def abandon(task: ptr[Task]) -> void:
    """The hit has been left: undo what was set while it lasted."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.trap != 0:
        task.context = kcb.trap_level
        kcb.trap = 0
    if kcb.frame & NO_PREEMPTION != 0:
        task.preempt -= 1
    end_without_posts(task)
    atomic_add(addressof(kprobes_abandoned), 1, "relaxed")


@native
def kprobe_left(task: ptr[Task]) -> void:
    """The outermost hit has been left: so has that of a kprobe in it."""
    abandon(task)


@native
def is_left(frame: u64, sp: u64) -> bool_:
    """Whether a hit at `sp` proves that the handlers called from `frame` have been left."""
    if frame > sp and frame - sp < _DEEP:
        return False
    return (frame <= sp and on_one_stack(frame, sp)) or off_signal_stack(frame)


@native(noinline=True)
def is_slot_interrupted(sp: u64) -> bool_:
    """Whether a hit at `sp` is in the handler of a signal that has interrupted an instruction in a slot."""
    registers = signal_frame(sp)
    for _ in range(8):
        if registers == 0:
            return False
        if find_slot(word_at(registers)[REGISTER_IP]) != null:
            return True
        registers = signal_frame(word_at(registers)[REGISTER_SP])
    return False


@native
def has_left(task: ptr[Task], sp: u64) -> bool_:
    """Whether a hit at `sp` proves that the hit of the kprobe that is recorded as running has been left."""
    kcb = get_kprobe_ctlblk(task)
    frame = kcb.frame & ~cast(u64, _LOW_BITS)
    if kcb.frame == 0:
        return task.rec == 0 and kcb.stepping != 0 and not is_slot_interrupted(sp)
    if is_left(frame, sp):
        return True
    noted = frame + DETOUR_RECORD
    return kcb.status == POST_DUE and (not readable(noted) or word_at(noted)[0] != kcb.stepping)


@native(noinline=True)
def kprobe_still_running(task: ptr[Task], sp: u64) -> bool_:
    """Whether the kprobe recorded as running still is, given a hit at `sp`. If not, the record is cleared."""
    if task.kprobe == SHARED_BUSY or not has_left(task, sp):
        return task.kprobe != 0
    python_handlers_left(task, sp)
    abandon(task)
    return False


@native(inline=True)
def is_running_in_stub(task: ptr[Task], sp: u64) -> bool_:
    """Whether a kprobe is running, given a hit at `sp` that has already marked the task."""
    return task.kprobe != 0 and kprobe_still_running(task, sp)


@native(inline=True)
def is_running(task: ptr[Task], sp: u64) -> bool_:
    """Like `is_running_in_stub`, before the hit marks the task. Also clears the mark of handlers that have been left."""
    kcb = get_kprobe_ctlblk(task)
    if task.rec != 0:
        forget_left(task, sp)
    if task.kprobe == 0:
        if kcb.due != 0 and task.rec == 0 and not is_slot_interrupted(sp):
            miss_posts(task, 0)  # a system call has been left
        return False
    noted = kcb.frame
    if kprobe_still_running(task, sp):
        return True
    before: u32 = 0
    if noted & NOT_INSIDE == 0:
        before = kcb.rec
    if noted & IN_STUB == 0 and task.rec == before & ~cast(u32, CREDIT) | INSIDE:  # otherwise another hit has begun
        unmark(task, before)
    return False


@native
def kprobe_running_here() -> bool_:
    """Whether this thread is handling a kprobe."""
    here: array[u64, 1] = zeroed
    task = current()
    return task != null and is_running(task, cast(u64, addressof(here[0])))
