"""struct kprobe_ctlblk: which kprobe a thread is handling, and what has to be known of its hit.

The block is stored in the thread's record, in space reserved for it. `Task.kprobe` is current_kprobe, which fprobes read too.
"""

from __future__ import annotations

from kprobes.hit.records import HIT_ACTIVE
from sandbox.native import *
from sandbox.threads.tasks import KPROBE_CTLBLK, Task

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
    frame: u64  # the stack pointer when handlers were called (kprobes.hit.left); 0: none are running, or unknown
    fault_trap: u64  # the trap number that is passed to fault handlers
    fault_passed: u64  # the record whose next fault is delivered, since its fault handlers have declined it
    fault_ip: u64  # where a handler faulted, if its fault_handler runs outside of the signal's frame
    trap: u32  # ON_FRAME, OFF_FRAME: where a breakpoint's handlers run; 0: none do
    trap_level: u32  # Task.context before that
    entered: u32  # Task.rec before the latest kprobe hit
    rec: u32  # Task.rec before the hit of Task.kprobe
    trap_mask: u64  # the signals that were blocked before the handlers ran, if they are ON_FRAME
    due: u64  # the place whose post_handlers are to be called for this hit: its address; 0: none


assert KprobeCtlblk.size <= 8 * KPROBE_CTLBLK


@native(inline=True)
def get_kprobe_ctlblk(task: ptr[Task]) -> ptr[KprobeCtlblk]:
    """The control block of a thread."""
    return cast(ptr[KprobeCtlblk], addressof(task.kprobe_ctlblk[0]))


IN_STUB, NOT_INSIDE, NO_PREEMPTION = 1, 2, 4
"""Low bits of KprobeCtlblk.frame: what to undo if the handlers are left. IN_STUB: they were called by a stub of ftrace, which
owns `rec`. NOT_INSIDE: `rec` was 0 before the hit (otherwise KprobeCtlblk.rec). NO_PREEMPTION: `preempt` was incremented."""


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
def unmark(task: ptr[Task], before: u32) -> void:
    """End a hit, restoring `rec`. The list is cleared first: where `rec` is 0, none is recorded."""
    if before == 0:
        task.list = 0
    signal_fence()
    task.rec = before
