"""Which kprobe a task is handling, and whether it still is.

A handler that is left by longjmp, its own or that of a signal handler which has interrupted it, never comes to an end. So it is
noted where the stack was when the handlers were called, below which they and whatever they call run: a hit at or above that
place on the same stack says that they are gone.
"""

from __future__ import annotations

from ftrace.hit.dispatch import SHARED_BUSY
from ftrace.hit.recursion import CREDIT, INSIDE
from ftrace.hit.stacks import off_signal_stack
from kprobes.hit.control import ON_FRAME, get_kprobe_ctlblk
from kprobes.hit.records import HIT_ACTIVE
from sandbox.native import (
    addressof,
    array,
    atomic_add,
    bool_,
    cast,
    extern,
    fn,
    global_var,
    native,
    null,
    ptr,
    signal_fence,
    u32,
    u64,
    void,
    zeroed,
)
from sandbox.threads.signals import ucontext
from sandbox.threads.tasks import Task, current

on_one_stack = extern("on_one_stack", fn[bool_, u64, u64])

IN_STUB, NOT_INSIDE, NO_PREEMPTION = 1, 2, 4
"""Low bits of KprobeCtlblk.frame: what is to be undone if the handlers are left. They were called by a stub of ftrace's, to which
`rec` belongs; `rec` was 0 before the hit (else it was KprobeCtlblk.rec); `preempt` is one more than it was."""
_LOW_BITS = 7

_DEEP = 65536
"""Bytes of stack that handlers hardly use."""

kprobes_abandoned = global_var(u64, 0, name="kprobes_abandoned")


@native(inline=True)
def start(task: ptr[Task], kprobe: u64, frame: u64) -> void:
    """Handlers of `kprobe` are about to be called. `frame`: an address in the stack frame of their caller, and low bits."""
    kcb = get_kprobe_ctlblk(task)
    task.kprobe = kprobe
    kcb.status = HIT_ACTIVE
    kcb.rec = kcb.entered
    kcb.frame = frame


@native(inline=True)
def finish(task: ptr[Task]) -> void:
    """No kprobe is running any more."""
    kcb = get_kprobe_ctlblk(task)
    kcb.frame = 0
    kcb.child = 0
    kcb.status = 0
    task.kprobe = 0


@native
def is_left(frame: u64, sp: u64) -> bool_:
    """Whether what was called from `frame` has been left, seen from a hit at `sp`."""
    if frame > sp and frame - sp < _DEEP:
        return False
    return (frame <= sp and on_one_stack(frame, sp)) or off_signal_stack(frame)


@native
def give_up(task: ptr[Task]) -> void:
    """The handlers have been left: what they had for their time goes."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.trap != 0:
        task.context = kcb.trap_level
        kcb.trap = 0
    if kcb.frame & NO_PREEMPTION != 0:
        task.preempt -= 1
    kcb.stepping = 0
    finish(task)
    atomic_add(addressof(kprobes_abandoned), 1, "relaxed")


@native
def kprobe_faulted(task: ptr[Task], context: ptr[ucontext]) -> void:
    """A guarded call has faulted in a handler, which does not go on: neither does what it kept for its time."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.trap == ON_FRAME:
        context.mask = kcb.trap_mask
    if kcb.trap != 0:
        task.context = kcb.trap_level
    kcb.trap = 0
    kcb.stepping = 0
    finish(task)


@native
def unmark(task: ptr[Task], before: u32) -> void:
    """The end of a hit before which `rec` was this. The list goes first: where `rec` is 0 none is noted."""
    if before == 0:
        task.list = 0
    signal_fence()
    task.rec = before


@native(noinline=True)
def kprobe_still_running(task: ptr[Task], sp: u64) -> bool_:
    """Whether the kprobe that is noted as running is, seen from a hit at `sp`. If it is not, none is any more."""
    kcb = get_kprobe_ctlblk(task)
    noted = kcb.frame
    if noted == 0 or task.kprobe == SHARED_BUSY or not is_left(noted & ~cast(u64, _LOW_BITS), sp):
        return task.kprobe != 0
    give_up(task)
    return False


@native(inline=True)
def is_running_in_stub(task: ptr[Task], sp: u64) -> bool_:
    """Whether a kprobe is running, seen from a hit at `sp` for which the task is marked."""
    return task.kprobe != 0 and kprobe_still_running(task, sp)


@native(inline=True)
def is_running(task: ptr[Task], sp: u64) -> bool_:
    """Likewise, before the task is marked: the mark of handlers that have been left goes too."""
    kcb = get_kprobe_ctlblk(task)
    if task.kprobe == 0:
        return False
    noted = kcb.frame
    if kprobe_still_running(task, sp):
        return True
    before: u32 = 0
    if noted & NOT_INSIDE == 0:
        before = kcb.rec
    if noted & IN_STUB == 0 and task.rec == before & ~cast(u32, CREDIT) | INSIDE:  # else others have begun something
        unmark(task, before)
    return False


@native
def kprobe_running_here() -> bool_:
    """Whether this thread is handling a kprobe."""
    here: array[u64, 1] = zeroed
    task = current()
    return task != null and is_running(task, cast(u64, addressof(here[0])))
