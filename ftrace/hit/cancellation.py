"""Cancellation of threads is off while a Python or C handler runs.

pthread_cancel() ends a thread at its next cancellation point. A handler calls some (locks, output) where the interrupted program
does not, and may hold a lock there; and the interpreter would stay locked. A request that arrives meanwhile is honoured later,
where the program itself would honour it.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.tasks import Task, current

_ENABLE, _DISABLE = 0, 1

setcancelstate = extern("pthread_setcancelstate", fn[i32, i32, ptr[i32]])


@native
def cancellation_off() -> u32:
    """Switch it off for this thread. Returns 1 if it was on."""
    old: array[i32, 1] = zeroed
    setcancelstate(_DISABLE, addressof(old[0]))
    if old[0] != _ENABLE:
        return 0
    task = current()
    if task != null:
        task.cancellable = 1
    return 1


@native
def cancellation_on(task: ptr[Task]) -> void:
    """Switch it on again."""
    if task != null:
        task.cancellable = 0
    setcancelstate(_ENABLE, null)


@native
def cancellation_back(was_on: u32) -> void:
    """Undo `cancellation_off`, which returned `was_on`."""
    if was_on != 0:
        cancellation_on(current())


@native
def handlers_left(task: ptr[Task]) -> void:
    """A handler has been left: undo `cancellation_off`, if one was running."""
    if task.cancellable != 0:
        cancellation_on(task)
