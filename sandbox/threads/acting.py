"""On whose behalf a thread acts: its hits are shown as those of another thread, of any process, with that one's name.

A thread that serves another process's request does what the kernel would do within that process's system call.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.system_calls import TASK_COMM_LEN, get_task_comm
from sandbox.threads.tasks import current, task_get


@native
def act_as(tid: u32, first: u64, second: u64) -> u32:
    """Show hits of the running thread as those of `tid`, whose name is the 16 bytes; 0: as its own. Returns the one before."""
    task = task_get()
    if task == null:
        return 0
    before = task.pid
    task.acting_comm[0] = first
    task.acting_comm[1] = second
    task.pid = tid if tid != 0 else task.tid
    return before if before != task.tid else cast(u32, 0)


@native
def shown_comm(name: ptr[u8]) -> u64:
    """Store the name of the thread that the running one acts for, TASK_COMM_LEN bytes, and return that length."""
    task = current()
    if task == null or task.pid == task.tid:
        return get_task_comm(name)
    words = cast(ptr[u64], name)
    words[0] = task.acting_comm[0]
    words[1] = task.acting_comm[1]
    return TASK_COMM_LEN


FUNCTIONS = (act_as, shown_comm)
