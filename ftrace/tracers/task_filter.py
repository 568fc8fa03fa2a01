"""Which threads a trace array's functions or events are recorded for, as hits see it."""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from sandbox.native import Structure, addressof, bool_, cast, native, null, ptr, struct, u64, volatile_load
from sandbox.threads.tasks import current


@struct
class TaskFilter(Structure):
    """Tables of thread ids: null if the list is empty."""

    only: ptr[Table]
    never: ptr[Table]


@native(noinline=True, name="ignores_task")
def ignores_task(filter: ptr[TaskFilter]) -> bool_:
    """Whether the running thread is not recorded: trace_ignore_this_task() of kernel/trace/trace_pid.c."""
    tid = cast(u64, current().tid)
    only = volatile_load(addressof(filter.only))
    if only != null and look_up(only, tid) == 0:
        return True
    never = volatile_load(addressof(filter.never))
    return never != null and look_up(never, tid) != 0
