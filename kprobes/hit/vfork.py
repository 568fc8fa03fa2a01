"""vfork() as fork(), for children that must not meet breakpoints.

A child of vfork() runs in the memory of its parent, with the parent's text. Its caller usually blocks every signal, and gives
handled signals their default action: there, SIGTRAP kills. So the child gets memory of its own, from which breakpoints are
removed. It runs only until it executes another program.
"""

from __future__ import annotations

from ftrace.hit.address_table import Table
from kprobes.hit.records import PlaceRecord, current_table
from sandbox.memory.pages import PAGE
from sandbox.native import *
from sandbox.threads.system_calls import block_signals, set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS
from sandbox.x86_64.encoding import INT3
from sandbox.x86_64.syscalls import SYS_MPROTECT

_READ_WRITE, _READ_EXEC, _READ_WRITE_EXEC = 3, 5, 7
_SIGTRAP = 1 << 4
SYNCHRONOUS = ~ASYNCHRONOUS & 0xFFFF_FFFF_FFFF_FFFF

fork_address = global_var(u64, 0, name="kprobe_fork")
"""The address of the C library's fork()."""


@native
def restore(record: ptr[PlaceRecord]) -> void:
    """Replace a breakpoint by the original byte, in this process's copy of the page."""
    site = cast(ptr[u8], record.address)
    page = cast(i64, record.address & ~cast(u64, PAGE - 1))
    if syscall(SYS_MPROTECT, page, PAGE, _READ_WRITE_EXEC, 0, 0, 0) != 0 and (
        syscall(SYS_MPROTECT, page, PAGE, _READ_WRITE, 0, 0, 0) != 0
    ):
        return
    site[0] = cast(u8, record.original)
    syscall(SYS_MPROTECT, page, PAGE, _READ_EXEC, 0, 0, 0)


@native(bounded=False)
def remove_breakpoints() -> void:
    """In the child of a fork: no breakpoint of a kprobe is left in its text."""
    if current_table == 0:
        return
    table = cast(ptr[Table], current_table)
    for index in range(table.mask + 1):
        record = cast(ptr[PlaceRecord], table.entries[index].word)
        if cast(u64, record) == 0 or record.address != table.entries[index].address:
            continue  # no probe, or the address of its slot
        if cast(ptr[u8], record.address)[0] == INT3 and record.original != INT3:
            restore(record)


@native(export=True)
def vfork_as_fork() -> i32:
    """vfork(). If the caller blocks all signals, SIGTRAP is not blocked any more, since fork() itself can have breakpoints."""
    mask = block_signals(0)
    if mask & SYNCHRONOUS == SYNCHRONOUS:
        set_signal_mask(mask & ~cast(u64, _SIGTRAP))
    pid = cast(fn[i32], fork_address)()
    if pid == 0:
        remove_breakpoints()
    return pid
