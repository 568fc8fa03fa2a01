"""Whether a thread is in a handler of an asynchronous signal, where the interpreter must not be entered (HAZARDS 6).

Such a handler may have interrupted the interpreter or malloc at any place. While one runs the kernel blocks its signal, so
a thread that blocks more than Python's threads do when they register a handler is taken to be in one. A signal handler
installed with SA_NODEFER and an empty mask blocks nothing, and cannot be told from the code that it interrupted.
"""

from __future__ import annotations

from sandbox.native import addressof, array, bool_, cast, global_var, i64, native, syscall, u64, zeroed
from sandbox.tasks import ASYNCHRONOUS

_SYS_RT_SIGPROCMASK = 14
_SIG_BLOCK = 0

normal_mask = global_var(u64, 0, name="normal_signal_mask")
"""The signals that the thread which registered a Python handler last blocks of its own choice."""


@native(noinline=True)
def in_signal_handler() -> bool_:
    blocked: array[u64, 1] = zeroed
    syscall(_SYS_RT_SIGPROCMASK, _SIG_BLOCK, 0, cast(i64, addressof(blocked[0])), 8, 0, 0)
    return blocked[0] & ~normal_mask & ASYNCHRONOUS != 0
