"""Recursion protection, as in include/linux/trace_recursion.h.

Each task has two families of context bits. A context that already holds its bit may take the family's TRANSITION bit once, so
that a callback that calls a traced function runs twice, and no deeper. `INSIDE` marks the outermost hit from before it loads a
site's list until it has finished with it: unregistering waits for that (ftrace.hit.quiesce).
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.tasks import Task, task_get

INSIDE = 1
FTRACE = 1
"""Shift of the family that callbacks take (ftrace_test_recursion_trylock)."""
LIST = 6
"""Shift of the family that the list walker and the assist function take."""

NORMAL_BIT = 3
TRANSITION_BIT = 4
FTRACE_NORMAL = 1 << (FTRACE + NORMAL_BIT)
LIST_NORMAL = 1 << (LIST + NORMAL_BIT)
CREDIT = 1 << 11
"""The task may be touching its credits (ftrace.hit.pools)."""
SWITCH = 1 << 12
"""The task is switching a pool, for which a hit in a signal that interrupts it must not wait."""
FAST = INSIDE | FTRACE_NORMAL | CREDIT
"""The value of `rec` during a hit on the fast path, whose handlers are short and never wait."""


@native(inline=True)
def trylock(task: ptr[Task], family: u32) -> u32:
    """The bit taken, or 0."""
    context_bit = cast(u32, 1) << (family + NORMAL_BIT - task.context)
    if task.rec & context_bit == 0:
        task.rec |= context_bit
        return context_bit
    transition = cast(u32, 1) << (family + TRANSITION_BIT)
    if task.rec & transition == 0:
        task.rec |= transition
        return transition
    return 0


@native(inline=True)
def unlock(task: ptr[Task], bit: u32) -> void:
    task.rec &= ~bit


@native
def recursion_trylock() -> i64:
    """ftrace_test_recursion_trylock for callbacks: the bit taken, or -1."""
    task = task_get()
    if task == null:
        return -1
    bit = trylock(task, FTRACE)
    return cast(i64, bit) if bit != 0 else -1


@native
def recursion_unlock(bit: u64) -> void:
    task = task_get()
    if task != null:
        unlock(task, cast(u32, bit))


PAUSED = 0x7FE
"""Every bit of both families: callbacks are locked out in all contexts."""
KPROBE_BUSY = 1
"""Task.kprobe while no kprobe may run in the thread, and none is running."""


@native(export=True)
def pause_tracing(unused: u64) -> void:
    """From now on the running thread's hits call no handler. An exit handler of the C library."""
    task = task_get()
    if task != null:
        task.rec |= PAUSED
        if task.kprobe == 0:
            task.kprobe = KPROBE_BUSY


@native(export=True)
def unpause_tracing(unused: u64) -> void:
    """End `pause_tracing`, which ran outside of all hits."""
    task = task_get()
    if task != null:
        task.rec &= ~cast(u32, PAUSED)
        if task.kprobe == KPROBE_BUSY:
            task.kprobe = 0


@native(export=True)
def pause_within() -> u64:
    """`pause_tracing` that may be called within a hit or another pause. Returns what `resume_within` takes."""
    task = task_get()
    if task == null:
        return 0
    before = cast(u64, task.rec & cast(u32, PAUSED))
    if task.kprobe == 0:
        before |= KPROBE_BUSY
    pause_tracing(0)
    return before


@native(export=True)
def resume_within(before: u64) -> void:
    """Restore what the thread had before `pause_within`."""
    task = task_get()
    if task != null:
        task.rec = task.rec & ~cast(u32, PAUSED) | cast(u32, before & PAUSED)
        if before & KPROBE_BUSY != 0:
            task.kprobe = 0
