"""The native filter of threads and slots for a trace array's functions or events."""

from __future__ import annotations

from ftrace.hit.pid_list import PidList, is_listed
from sandbox.native import *
from sandbox.threads.tasks import current, task_get


@struct
class TaskFilter(Structure):
    """Lists of thread ids, and a bitmap of slots whose records are dropped; null where there is none."""

    is_set: u64  # not 0: one of the pointers is not null
    only: ptr[PidList]
    never: ptr[PidList]
    dropped: ptr[u64]


@native(noinline=True, name="task_is_dropped")
def is_dropped(filter: ptr[TaskFilter]) -> bool_:
    """trace_ignore_this_task() of kernel/trace/trace_pid.c, and tracing_cpumask."""
    task = current()
    dropped = volatile_load(addressof(filter.dropped))
    index = cast(u64, task.index)
    if dropped != null and dropped[index >> 6] >> (index & 63) & 1 != 0:
        return True
    only = volatile_load(addressof(filter.only))
    if only != null and not is_listed(only, cast(u64, task.pid)):
        return True
    never = volatile_load(addressof(filter.never))
    return never != null and is_listed(never, cast(u64, task.pid))


@native(inline=True)
def ignores_task(filter: ptr[TaskFilter]) -> bool_:
    """Whether records of the running thread are dropped."""
    return unlikely(volatile_load(addressof(filter.is_set)) != 0) and is_dropped(filter)


@native(noinline=True, name="task_is_dropped_now")
def is_dropped_now(filter: ptr[TaskFilter]) -> bool_:
    """As `is_dropped`, of a thread that may have no task yet."""
    return task_get() != null and is_dropped(filter)


FUNCTIONS = (is_dropped, is_dropped_now)
