"""The breakpoints that stay in patched entries: where no jump fits, and at instructions that a jump has absorbed.

Whoever runs into one goes on where a table says: at the site's detour, or at the copy of the instruction that was there.
"""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from sandbox.native import addressof, bool_, cast, global_var, load, native, ptr, u32, u64
from sandbox.threads.signals import ucontext

current = global_var(u64, 0, name="detour_table")


@native
def detour_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The consumer of SIGTRAP; no if the breakpoint is somebody else's."""
    to = look_up(cast(ptr[Table], load(addressof(current), "acquire")), context.ip - 1)
    if to == 0:
        return False
    context.ip = to
    return True
