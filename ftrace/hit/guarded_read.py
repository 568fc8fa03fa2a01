"""Guarded reads: a fault while a handler copies from a bad pointer becomes an errno, and is counted."""

from __future__ import annotations

from sandbox.native import addressof, atomic_add, bool_, cast, extern, fn, global_var, i64, native, ptr, u32, u64, void
from sandbox.threads.signals import ucontext

SYMBOLS = ("ftrace_probe_read", "ftrace_probe_read_str")
"""What handlers call, from ftrace.x86_64.guarded_read."""

copy_words = extern("ftrace_probe_read", fn[i64, u64, u64, u64])
zero_words = extern("ftrace_probe_zero", fn[void])
failed = extern("ftrace_probe_failed", fn[void])
copy_text = extern("ftrace_probe_read_str", fn[i64, u64, u64, u64])
empty_text = extern("ftrace_probe_empty", fn[void])
end = extern("ftrace_probe_end", fn[void])

read_faults = global_var(u64, 0, name="probe_read_faults")


@native(inline=True)
def within(ip: u64, first: u64, past: u64) -> bool_:
    return first <= ip and ip < past


@native
def read_fault(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A consumer of SIGSEGV and SIGBUS: a copy that faulted clears its destination, if that is mapped."""
    ip = context.ip
    if within(ip, cast(u64, copy_words), cast(u64, zero_words)):
        context.ip = cast(u64, zero_words)
    elif within(ip, cast(u64, copy_text), cast(u64, empty_text)):
        context.ip = cast(u64, empty_text)
    elif within(ip, cast(u64, zero_words), cast(u64, end)):
        context.ip = cast(u64, failed)
        return True
    else:
        return False
    atomic_add(addressof(read_faults), 1, "relaxed")
    return True
