"""struct kprobe_ctlblk: which kprobe a thread is handling, and whether it still is.

The block is stored in the thread's record, in space reserved for it. `Task.kprobe` is current_kprobe, which fprobes read too.

A handler that is left by longjmp (its own, or that of a signal handler that interrupted it) never ends. So the stack pointer
is recorded when handlers are called; they and everything they call run below it. A hit at or above that address on the same
stack proves that the handlers have been left.
"""

from __future__ import annotations

from ftrace.hit.nodes import off_signal_stack
from ftrace.hit.records import SHARED_BUSY
from ftrace.hit.recursion import CREDIT, INSIDE
from kprobes.hit.records import FAULT_DUE, HIT_ACTIVE, HIT_SS, POST_DUE
from sandbox.native import *
from sandbox.threads.signals import ucontext
from sandbox.threads.tasks import KPROBE_CTLBLK, Task, current

ON_FRAME, OFF_FRAME = 1, 2
"""KprobeCtlblk.trap: whether a breakpoint's handlers run on the frame of its signal."""


@struct
class KprobeCtlblk(Structure):
    """All zero when a thread gets its record."""

    status: u32  # kprobes.hit.records: what stage the kprobe that is being handled is in
    outer_status: u32
    outer_kprobe: u64  # with outer_status, outer_stepping: the outer hit's state while a missed kprobe is stepped
    outer_stepping: u64
    stepping: u64  # the record whose instruction this thread executes in a slot, or 0
    step_mask: u64  # the signals that were blocked before the step
    child: u64  # the kprobes.hit.records.Child whose handler is running, or 0
    frame: u64  # the stack pointer when handlers were called, or of the probed code while it is stepped; 0: unknown, or none
    fault_trap: u64  # the trap number that is passed to fault handlers
    fault_passed: u64  # the record whose next fault is delivered, since its fault handlers have declined it
    fault_ip: u64  # where a handler faulted, if its fault_handler runs outside of the signal's frame
    trap: u32  # ON_FRAME, OFF_FRAME: where a breakpoint's handlers run; 0: none do
    trap_level: u32  # Task.context before that
    entered: u32  # Task.rec before the latest kprobe hit
    rec: u32  # Task.rec before the hit of Task.kprobe
    trap_mask: u64  # the signals that were blocked before the handlers ran, if they are ON_FRAME


assert KprobeCtlblk.size <= 8 * KPROBE_CTLBLK


@native(inline=True)
def get_kprobe_ctlblk(task: ptr[Task]) -> ptr[KprobeCtlblk]:
    """The control block of a thread."""
    return cast(ptr[KprobeCtlblk], addressof(task.kprobe_ctlblk[0]))


on_one_stack = extern("on_one_stack", fn[bool_, u64, u64])
forget_left = extern("forget_left", fn[void, ptr[Task], u64])
no_frame_between = extern("no_frame_between", fn[bool_, u64, u64])
python_handlers_left = extern("python_handlers_left", fn[void, ptr[Task], u64, u64])

IN_STUB, NOT_INSIDE, NO_PREEMPTION = 1, 2, 4
"""Low bits of KprobeCtlblk.frame: what to undo if the handlers are left. IN_STUB: they were called by a stub of ftrace, which
owns `rec`. NOT_INSIDE: `rec` was 0 before the hit (otherwise KprobeCtlblk.rec). NO_PREEMPTION: `preempt` was incremented."""
_LOW_BITS = 7

_DEEP = 65536
"""Bytes of stack; handlers are assumed to use less."""

kprobes_abandoned = global_var(u64, 0, name="kprobes_abandoned")


@native(inline=True)
def start(task: ptr[Task], kprobe: u64, frame: u64) -> void:
    """Handlers of `kprobe` are about to be called. `frame`: an address in their caller's stack frame, plus low bits."""
    kcb = get_kprobe_ctlblk(task)
    kcb.status = HIT_ACTIVE
    kcb.rec = kcb.entered
    kcb.frame = frame
    signal_fence()
    task.kprobe = kprobe


@native(inline=True)
def finish(task: ptr[Task]) -> void:
    """No kprobe is running any more."""
    kcb = get_kprobe_ctlblk(task)
    task.kprobe = 0
    signal_fence()
    kcb.frame = 0
    kcb.child = 0
    kcb.status = 0


@native
def is_left(frame: u64, sp: u64) -> bool_:
    """Whether a hit at `sp` proves that the handlers called from `frame` have been left."""
    if frame > sp and frame - sp < _DEEP:
        return False
    return (frame <= sp and on_one_stack(frame, sp)) or off_signal_stack(frame)


_STEPPED = HIT_SS | POST_DUE | FAULT_DUE
"""While KprobeCtlblk.frame is the probed code's stack pointer."""


@native
def is_step_left(step: u64, sp: u64) -> bool_:
    """Whether a hit at `sp` proves that a step of code with the stack pointer `step`, or what follows in a detour, has been left.

    A hit inside of that is in a signal's handler.
    """
    return on_one_stack(step, sp) if step <= sp else no_frame_between(sp, step)


@native
def abandon(task: ptr[Task]) -> void:
    """The handlers have been left: undo what was set while they ran."""
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
def kprobe_left(task: ptr[Task]) -> void:
    """The outermost hit has been left: so have the handlers of a kprobe that were called in it."""
    kcb = get_kprobe_ctlblk(task)
    if kcb.frame != 0 and kcb.status & _STEPPED == 0:
        abandon(task)


@native
def kprobe_faulted(task: ptr[Task], context: ptr[ucontext]) -> void:
    """A guarded call has faulted in a handler, which will not continue: undo what was set while it ran."""
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
    """End a hit, restoring `rec`. The list is cleared first: where `rec` is 0, none is recorded."""
    if before == 0:
        task.list = 0
    signal_fence()
    task.rec = before


@native(noinline=True)
def kprobe_still_running(task: ptr[Task], sp: u64) -> bool_:
    """Whether the kprobe recorded as running still is, given a hit at `sp`. If not, the record is cleared."""
    kcb = get_kprobe_ctlblk(task)
    noted = kcb.frame
    if noted == 0 or task.kprobe == SHARED_BUSY:
        return task.kprobe != 0
    if kcb.status & _STEPPED != 0:
        if not is_step_left(noted, sp):
            return True
    elif not is_left(noted & ~cast(u64, _LOW_BITS), sp):
        return True
    python_handlers_left(task, sp, sp)
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
