"""What each thread keeps for its kprobes: struct kprobe_ctlblk.

It lies in the thread's record, which gives it room and knows no more of it; `Task.kprobe` beside it is current_kprobe, which
fprobes look at too.
"""

from __future__ import annotations

from sandbox.native import Structure, addressof, cast, native, ptr, struct, u32, u64
from sandbox.threads.tasks import KPROBE_CTLBLK, Task

ON_FRAME, OFF_FRAME = 1, 2
"""KprobeCtlblk.trap: whether a breakpoint's handlers run on the frame of its signal."""


@struct
class KprobeCtlblk(Structure):
    """All 0 when a thread gets its record."""

    status: u32  # kprobes.hit.records: what stage the kprobe that is being handled is in
    outer_status: u32
    outer_kprobe: u64  # Task.kprobe, its status and `stepping`, while the instruction of one that was missed is stepped
    outer_stepping: u64
    stepping: u64  # the record whose instruction this thread executes in a slot, or 0
    step_mask: u64  # the signals that were blocked before that
    child: u64  # whose handler is running (kprobes.hit.records.Child), or 0
    frame: u64  # where the stack was when handlers were called (kprobes.hit.running); 0: none are, or unknown
    fault_trap: u64  # number of the trap that fault handlers are asked about
    fault_passed: u64  # the record whose next fault is delivered, since they have been asked
    fault_ip: u64  # where a handler has faulted whose fault_handler runs off the signal's frame
    trap: u32  # ON_FRAME, OFF_FRAME: where a breakpoint's handlers run; 0: none do
    trap_level: u32  # Task.context before that
    entered: u32  # what Task.rec was before the kprobe hit that began last
    rec: u32  # ... before the one that Task.kprobe is
    trap_mask: u64  # the signals that were blocked before the handlers ran, if they are ON_FRAME


assert KprobeCtlblk.size <= 8 * KPROBE_CTLBLK


@native(inline=True)
def get_kprobe_ctlblk(task: ptr[Task]) -> ptr[KprobeCtlblk]:
    """The control block of a thread."""
    return cast(ptr[KprobeCtlblk], addressof(task.kprobe_ctlblk[0]))
