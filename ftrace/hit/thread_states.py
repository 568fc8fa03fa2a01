"""Acquiring the GIL for a Python handler, and excluding forks while CPython creates a thread state.

CPython gives an unknown thread a state and links it into its list: under a lock, but not under the GIL. A child forked at that
moment finds the lock taken, and up to Python 3.11 waits for it inside `os.fork`; or it finds the list half changed. So threads
that are about to get a state are counted; `os.fork` waits until there are none, and holds off new ones
(`ftrace.handlers.python_handler`). A thread that has a state skips all this. States are released under the GIL, which the
forking thread holds.
"""

from __future__ import annotations

from sandbox.native import (
    addressof,
    atomic_add,
    atomic_sub,
    extern,
    fn,
    global_var,
    i32,
    load,
    native,
    null,
    ptr,
    u8,
    u32,
    u64,
    void,
)
from sandbox.threads.system_calls import nap

PATIENCE = 40_000
"""Naps, some seconds in all: a limit that turns a deadlock into a delay."""

gil_ensure = extern("PyGILState_Ensure", fn[i32])
this_thread = extern("PyGILState_GetThisThreadState", fn[ptr[u8]])

coming = global_var(u64, 0, name="thread_states_coming")
"""How many threads may be in the midst of getting a state."""
held_off = global_var(u64, 0, name="thread_states_held_off")
"""Not 0 while a fork is under way."""


@native
def begin_state() -> void:
    """Count this thread in `coming`, when no fork is under way."""
    atomic_add(addressof(coming), 1)
    for _ in range(PATIENCE):
        if load(addressof(held_off), "seq_cst") == 0:
            return
        atomic_sub(addressof(coming), 1)
        nap()
        atomic_add(addressof(coming), 1)


@native
def enter_interpreter() -> i32:
    """PyGILState_Ensure, but not while a fork is under way if that makes a thread state."""
    if this_thread() != null:
        return gil_ensure()
    begin_state()
    gil = gil_ensure()
    atomic_sub(addressof(coming), 1)
    return gil


@native(export=True)
def hold_off_states() -> u32:
    """A fork is about to come: return when no thread is getting a state. Without the GIL, which those wait for.

    1 if that is so, 0 if it has taken too long.
    """
    atomic_add(addressof(held_off), 1)
    for _ in range(PATIENCE):
        if load(addressof(coming), "seq_cst") == 0:
            return 1
        nap()
    return 0
