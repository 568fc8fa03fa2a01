"""Python handlers that are left by longjmp: the interpreter's state in their thread is undefined, and it may keep the GIL.

Nothing can be done about that, so it is said, and no other handler is called in that thread: those are misses.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.tasks import Task, current
from sandbox.x86_64.syscalls import SYS_WRITE

LEFT = 1
"""Task.python in a thread in which one has been left."""
_STANDARD_ERROR = 2

left_text = global_var(u64, 0, name="python_left_text")
left_length = global_var(u64, 0, name="python_left_length")
"""What is written then."""


@native(noinline=True)
def python_handlers_left(task: ptr[Task], sp: u64) -> void:
    """Hits whose stacks begin below `sp` have been left. If a Python handler is running in one, so has that been."""
    if task.python > LEFT and task.python < sp:
        task.python = LEFT
        syscall(SYS_WRITE, _STANDARD_ERROR, cast(i64, left_text), cast(i64, left_length), 0, 0, 0)


@native(inline=True)
def has_left_python() -> bool_:
    """Whether no Python handler may be called in this thread any more."""
    task = current()
    return task != null and task.python == LEFT
