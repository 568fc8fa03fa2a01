"""Guarded reads: a fault while a handler copies from a bad pointer becomes an errno, and is counted."""

from __future__ import annotations

from sandbox.native import addressof, atomic_add, bool_, cast, extern, fn, global_var, i64, native, ptr, u32, u64, void
from sandbox.signals import ucontext

SYMBOLS = ("ftrace_probe_read", "ftrace_probe_read_str")
"""What handlers call, from ftrace.x86_64.guarded_read."""

copy_words = extern("ftrace_probe_read", fn[i64, u64, u64, u64])
zero_words = extern("ftrace_probe_zero", fn[void])
failed = extern("ftrace_probe_failed", fn[void])
copy_text = extern("ftrace_probe_read_str", fn[i64, u64, u64, u64])
empty_text = extern("ftrace_probe_empty", fn[void])
end = extern("ftrace_probe_end", fn[void])

read_faults = global_var(u64, 0, name="probe_read_faults")


@native
def way_on(ip: u64) -> u64:
    """Where a copy that faulted at `ip` goes on; 0 if that is no guarded copy."""
    if ip < cast(u64, copy_words) or ip >= cast(u64, end):
        return 0
    if ip < cast(u64, zero_words):
        return cast(u64, zero_words)
    if ip < cast(u64, copy_text) or ip >= cast(u64, empty_text):
        return cast(u64, failed)
    return cast(u64, empty_text)


@native
def read_fault(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A consumer of SIGSEGV and SIGBUS."""
    where = way_on(context.ip)
    if where == 0:
        return False
    if context.ip < cast(u64, zero_words) or context.ip >= cast(u64, copy_text):
        atomic_add(addressof(read_faults), 1, "relaxed")
    context.ip = where
    return True


def probe_read_faults() -> int:
    """How often `probe_read` and `probe_read_str` have met a bad pointer in this process."""
    from ftrace.runtime import runtime

    return int(runtime().image.variable("probe_read_faults").value)
