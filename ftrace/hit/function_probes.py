"""Function probes: the native half of the commands of set_ftrace_filter.

A probe's state has the function to call and, if its command has a count, the remaining calls for each function.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.address_table import Table, look_up, table_set
from sandbox.native import (
    Structure,
    addressof,
    atomic_add,
    atomic_cas,
    bool_,
    cast,
    fn,
    i32,
    i64,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u64,
    void,
)

ProbeFunction: TypeAlias = fn[void, u64, u64, u64]
"""func(ip, parent_ip, probe): the action of a command. `probe`: the address of its FunctionProbe."""


@struct
class FunctionProbe(Structure):
    """What the callback of a command's ops gets."""

    func: ProbeFunction
    counts: ptr[Table]  # where how often it is still to act at a function is; null: there is no limit
    switch: ptr[u64]  # tracing_on


@native
def function_trace_probe_call(ip: u64, parent_ip: u64, probe: u64, regs: u64, data: u64) -> i32:
    """The callback of every such ops."""
    cast(ptr[FunctionProbe], probe).func(ip, parent_ip, probe)
    return 0


@native(bounded=False)
def take_one(left: ptr[i64]) -> bool_:
    """Count down, if there is something left."""
    before = load(left, "relaxed")
    while before > 0 and not atomic_cas(left, before, before - 1, "acq_rel"):
        before = load(left, "relaxed")
    return before > 0


@native
def switch_tracing(probe: ptr[FunctionProbe], ip: u64, on: u64) -> void:
    """Only a hit that changes something counts, and each change counts once, whatever other threads do."""
    if load(probe.switch, "relaxed") == on:
        return
    left = cast(ptr[i64], look_up(load(addressof(probe.counts), "acquire"), ip))
    if left == null:
        store(probe.switch, on, "release")
    elif take_one(left) and not atomic_cas(probe.switch, 1 - on, on, "acq_rel"):
        atomic_add(left, 1, "relaxed")


@native
def ftrace_traceon(ip: u64, parent_ip: u64, probe: u64) -> void:
    switch_tracing(cast(ptr[FunctionProbe], probe), ip, 1)


@native
def ftrace_traceoff(ip: u64, parent_ip: u64, probe: u64) -> void:
    switch_tracing(cast(ptr[FunctionProbe], probe), ip, 0)


FUNCTIONS = (function_trace_probe_call, ftrace_traceon, ftrace_traceoff, table_set)
