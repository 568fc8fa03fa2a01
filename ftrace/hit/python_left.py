"""Python handlers that are left by longjmp: what is undone of them, and that it is said.

The interpreter's frames and counts are put back as they were before the handler was called (ftrace.hit.python_states). What the
handler held, references and locks, stays so: no other handler is called in that thread; those are misses.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.tasks import PYTHON_CALLS, Task, current
from sandbox.x86_64.syscalls import SYS_WRITE

LEFT = 1
"""Task.python in a thread in which one has been left."""
_STANDARD_ERROR = 2

left_text = global_var(u64, 0, name="python_left_text")
left_length = global_var(u64, 0, name="python_left_length")
"""What is written then."""
put_back = global_var(u64, 0, name="python_put_back")
"""The address of ftrace.hit.python_states.put_back; 0 before there are Python handlers."""


@native
def outermost_left(task: ptr[Task], end: u64) -> void:
    """Note the outermost of the running handlers that were called below `end` as the one that has been left."""
    for level in range(PYTHON_CALLS):
        if level < task.python_depth and task.python_calls[level].at < end:
            task.python_left = level + 1
            task.python_depth = level
            return


@native(noinline=True)
def put_back_now(task: ptr[Task], sp: u64) -> void:
    """Put the interpreter's state back, given a hit of this thread at `sp`, if that is due and can be done here."""
    if task.python_left != 0 and cast(fn[bool_, ptr[Task], u64], put_back)(task, sp):
        task.python_left = 0


@native(noinline=True)
def python_handlers_left(task: ptr[Task], end: u64, sp: u64) -> void:
    """Hits whose stacks begin below `end` have been left, as this one at `sp` shows. So have the Python handlers in them."""
    if task.python > LEFT and task.python < end:
        task.python = LEFT
        outermost_left(task, end)
        put_back_now(task, sp)
        syscall(SYS_WRITE, _STANDARD_ERROR, cast(i64, left_text), cast(i64, left_length), 0, 0, 0)


@native(inline=True)
def has_left_python() -> bool_:
    """Whether no Python handler may be called in this thread any more."""
    task = current()
    if task == null or task.python != LEFT:
        return False
    here: array[u64, 1] = zeroed
    put_back_now(task, cast(u64, addressof(here[0])))
    return True
