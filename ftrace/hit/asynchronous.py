"""Detecting where the interpreter must not be entered: in sub-interpreters, and in handlers of asynchronous signals.

A signal handler may have interrupted the interpreter or malloc anywhere. While it runs, the kernel blocks its signal: a thread
that blocks more signals than Python's threads did when they registered a handler is taken to be in one. The mask is read only
if a signal frame is on the stack between the hit and the guarded call that led to it. A handler installed with SA_NODEFER and
an empty mask blocks nothing and cannot be detected.
"""

from __future__ import annotations

from ftrace.hit.python_left import has_left_python
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.system_calls import block_signals
from sandbox.threads.tasks import ASYNCHRONOUS, Guard, current

normal_mask = global_var(u64, 0, name="normal_signal_mask")
"""The signals that the thread which registered a Python handler last blocks of its own choice."""


_SEGMENTS = 0x002B_0000_0000_0033
"""cs, gs, fs and ss as every signal's frame holds them, in one word."""
_NEAR = 4096
"""Bytes of stack that are scanned."""


@native
def no_frame_between(start: u64, end: u64) -> bool_:
    """Whether there is certainly no signal's frame from `start` to `end`, not far up the same stack.

    The kernel puts frames 8 bytes from a multiple of 16, and unwinders rely on it; so is the word that is looked for.
    """
    if end - start > _NEAR:
        return False
    address = start + 7 & ~15 | 8
    while address < end:
        if volatile_load(cast(ptr[u64], address)) == _SEGMENTS:
            return False
        address += 16
    return True


@native(noinline=True)
def blocks_signals() -> bool_:
    return block_signals(0) & ~normal_mask & ASYNCHRONOUS != 0


sub_interpreter_test = global_var(u64, 0, name="sub_interpreter_test")
"""The address of ftrace.hit.interpreters.in_sub_interpreter; 0 before there are Python handlers."""


@native(noinline=True)
def in_sub_interpreter_now() -> bool_:
    """Whether this thread runs in another interpreter than the main one, or has left a Python handler by longjmp."""
    return has_left_python() or (sub_interpreter_test != 0 and cast(fn[u64], sub_interpreter_test)() != 0)


@native(noinline=True)
def python_barred(regs: ptr[pt_regs]) -> bool_:
    """Whether a Python handler must not be called at this hit."""
    return in_signal_handler(regs) or in_sub_interpreter_now()


@native(noinline=True)
def in_signal_handler(regs: ptr[pt_regs]) -> bool_:
    """Whether the hit with these registers, which lie on the stack below the interrupted code's frame, is in such a handler.

    Scanning the stack from there to the call from Python usually decides, and is cheaper than a system call.
    """
    task = current()
    if task != null and task.guard != addressof(task.guards[0]):
        call = cast(ptr[Guard], addressof(cast(ptr[Guard], task.guard)[-1]))
        if no_frame_between(cast(u64, addressof(regs[1])), call.sp):
            return False
    return blocks_signals()
