"""What a longjmp out of a Python handler leaves wrong in the state of its thread, and putting it back.

The interpreter keeps in a thread's state where its chain of frames begins: in a C frame. Also how deep calls are nested, which
exception is being handled, and how far the stack of Python's frames reaches. After the jump all this is of the handler, whose C
frames the next calls overwrite.

So it is noted when a handler is called, and put back at a hit of the same thread, if the chain still leads to a C frame that is
gone. If Python has run since, the rest may have changed, too: then only the chain is put back.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.threads.tasks import PYTHON_CALLS, PythonCall, Task


@struct
class StateLayout(Structure):
    """Where CPython keeps what, in bytes. `chain`: in a thread's state; 0: not known, and nothing is put back."""

    chain: u64
    through: u64  # 1 more than the offset of the innermost frame in what the chain begins with; 0: see `frame`
    frame: u64  # of the innermost frame in the state, if `through` is 0
    place: u64  # of the instruction in a frame
    counter: u64  # gilstate_counter
    exceptions: u64  # exc_info
    handled: u64  # how many words of what that points to
    words: array[u64, 8]  # 0 after the last
    halves: array[u64, 4]


state_layout = global_var(StateLayout, name="python_state_layout")
running_state = global_var(u64, 0, name="python_running_state")
"""The address of _PyThreadState_UncheckedGet()."""

this_thread = extern("PyGILState_GetThisThreadState", fn[ptr[u8]])
save_thread = extern("PyEval_SaveThread", fn[ptr[u8]])
restore_thread = extern("PyEval_RestoreThread", fn[void, ptr[u8]])
blocks_signals = extern("blocks_signals", fn[bool_])
on_one_stack = extern("on_one_stack", fn[bool_, u64, u64])


@native(inline=True)
def word_at(address: u64) -> ptr[u64]:
    return cast(ptr[u64], address)


@native(inline=True)
def half_at(address: u64) -> ptr[u32]:
    return cast(ptr[u32], address)


@native(inline=True)
def innermost_frame(layout: ptr[StateLayout], state: u64, chain: u64) -> u64:
    if layout.through != 0:
        return word_at(chain + layout.through - 1)[0]
    return word_at(state + layout.frame)[0]


@native
def note(call: ptr[PythonCall], layout: ptr[StateLayout], state: u64) -> void:
    """With the GIL."""
    call.chain = word_at(state + layout.chain)[0]
    call.frame = innermost_frame(layout, state, call.chain)
    call.place = word_at(call.frame + layout.place)[0] if call.frame != 0 else 0
    for index in range(8):
        if layout.words[index] == 0:
            break
        call.words[index] = word_at(state + layout.words[index])[0]
    for index in range(4):
        if layout.halves[index] == 0:
            break
        call.halves[index] = half_at(state + layout.halves[index])[0]
    handled = word_at(word_at(state + layout.exceptions)[0])
    for index in range(min(layout.handled, 3)):
        call.handled[index] = handled[index]


@native
def begin_call(task: ptr[Task], at: u64, gil: i32) -> void:
    """A Python handler is about to be called by the function in whose frame `at` is. With the GIL."""
    level = task.python_depth
    if level < PYTHON_CALLS and state_layout.chain != 0:
        call = addressof(task.python_calls[level])
        call.at = at
        call.gil = cast(u64, gil)
        note(call, addressof(state_layout), cast(u64, this_thread()))
    task.python_left = 0
    signal_fence()
    task.python_depth = level + 1


@native
def put_rest_back(call: ptr[PythonCall], layout: ptr[StateLayout], state: u64) -> void:
    for index in range(8):
        if layout.words[index] == 0:
            break
        word_at(state + layout.words[index])[0] = call.words[index]
    for index in range(4):
        if layout.halves[index] == 0:
            break
        half_at(state + layout.halves[index])[0] = call.halves[index]
    handled = word_at(word_at(state + layout.exceptions)[0])
    for index in range(min(layout.handled, 3)):
        handled[index] = call.handled[index]
    half_at(state + layout.counter)[0] -= 1  # PyGILState_Release


@native
def put_lock_back(call: ptr[PythonCall], state: ptr[u8]) -> void:
    """Hold the GIL if the thread held it when the handler was called, and only then."""
    has = cast(fn[ptr[u8]], running_state)() == state
    if call.gil == 0 and not has:
        restore_thread(state)
    elif call.gil != 0 and has:
        save_thread()


@native(export=True)
def put_back(task: ptr[Task], sp: u64) -> bool_:
    """Undo what the left call `task.python_left` has changed. `sp`: of a hit of this thread. False: it must be tried again."""
    layout = addressof(state_layout)
    state = this_thread()
    if layout.chain == 0 or state == null:
        return True
    call = addressof(task.python_calls[task.python_left - 1])
    base = cast(u64, state)
    chain = word_at(base + layout.chain)[0]
    if chain == call.chain:
        return True
    if chain == 0 or chain >= call.at or chain >= sp or not on_one_stack(chain, sp):
        return False
    word_at(base + layout.chain)[0] = call.chain
    if layout.through == 0:
        word_at(base + layout.frame)[0] = call.frame
    if call.frame == 0 or word_at(call.frame + layout.place)[0] == call.place:
        put_rest_back(call, layout, base)
        if not blocks_signals():
            put_lock_back(call, state)
    return True
