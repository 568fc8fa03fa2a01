"""Whether the running thread is in a sub-interpreter, where handlers, which are objects of the main one, cannot be called.

From Python 3.12 on, PyGILState_GetThisThreadState() follows each change of a thread's interpreter. Before, it stays at the
first state that the thread has had. There the state that holds the GIL is compared, which all interpreters share. If this thread
has released the GIL, it is in the interpreter for which it has another state with a Python frame.
"""

from __future__ import annotations

from ftrace.hit.python_call import enter_interpreter, gil_release, switched_off
from ftrace.hit.python_objects import Object, decref
from ftrace.hit.python_states import this_thread
from sandbox.native import *

interpreter_of = extern("PyThreadState_GetInterpreter", fn[ptr[u8], ptr[u8]])
first_interpreter = extern("PyInterpreterState_Head", fn[ptr[u8]])
next_interpreter = extern("PyInterpreterState_Next", fn[ptr[u8], ptr[u8]])
first_state = extern("PyInterpreterState_ThreadHead", fn[ptr[u8], ptr[u8]])
next_state = extern("PyThreadState_Next", fn[ptr[u8], ptr[u8]])
frame_of = extern("PyThreadState_GetFrame", fn[Object, ptr[u8]])

main_interpreter = global_var(u64, 0, name="python_main_interpreter")
current_state = global_var(u64, 0, name="python_current_state")
"""The address of _PyThreadState_UncheckedGet() up to Python 3.11; 0: it is not needed."""
thread_at = global_var(u64, 0, name="python_thread_at")
"""The offset of a state's thread, as pthread_self(); only used with `current_state`."""


@native(inline=True)
def is_main(interpreter: ptr[u8]) -> bool_:
    return cast(u64, interpreter) == main_interpreter


@native(inline=True)
def is_mine(state: ptr[u8]) -> bool_:
    """Whether a state is of this thread: pthread_self() is the first word of its control block."""
    thread = cast(ptr[u64], cast(u64, state) + thread_at)[0]
    return thread == read_fs(0)


@native
def has_frame(state: ptr[u8]) -> bool_:
    frame = frame_of(state)
    if frame == null:
        return False
    decref(frame)
    return True


@native(bounded=False)
def runs_in(interpreter: ptr[u8]) -> bool_:
    """Whether this thread has called Python there. With the GIL."""
    state = first_state(interpreter)
    while state != null:
        if is_mine(state) and has_frame(state):
            return True
        state = next_state(state)
    return False


@native(bounded=False, noinline=True)
def runs_in_another() -> bool_:
    """The same, in any interpreter but the main one. Called without the GIL, up to Python 3.11."""
    gil = enter_interpreter()
    found = False
    interpreter = first_interpreter()
    while interpreter != null and not found:
        found = not is_main(interpreter) and runs_in(interpreter)
        interpreter = next_interpreter(interpreter)
    gil_release(gil)
    return found


@native(export=True)
def in_sub_interpreter() -> u64:
    """1 if a Python handler must not be called, as this thread is in another interpreter than the main one."""
    mine = this_thread()
    if mine == null or load(addressof(switched_off), "acquire") != 0:
        return 0
    if not is_main(interpreter_of(mine)):
        return 1
    if current_state == 0:
        return 0
    current = cast(fn[ptr[u8]], current_state)()
    if current == mine:
        return 0
    if current != null and is_mine(current):
        return 1
    first = first_interpreter()
    if is_main(first) and next_interpreter(first) == null:
        return 0
    return 1 if runs_in_another() else 0
