"""Breakpoints that stay in patched entries: where no jump fits, and at instructions that a jump has absorbed.

A thread that hits one continues at the address in a table: the site's detour, or the copy of the original instruction.
"""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from sandbox.native import addressof, bool_, cast, global_var, load, native, ptr, u32, u64
from sandbox.threads.signals import ucontext

current = global_var(u64, 0, name="detour_table")


@native
def detour_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The consumer of SIGTRAP. False if the breakpoint is not ours."""
    to = look_up(cast(ptr[Table], load(addressof(current), "acquire")), context.ip - 1)
    if to == 0:
        return False
    context.ip = to
    return True
