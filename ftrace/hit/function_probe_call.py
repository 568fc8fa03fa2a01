"""Function probes: the native half of the commands of set_ftrace_filter.

A probe's state has the function to call and, if its command has a count, the remaining calls for each function.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.address_table import Table, look_up, table_set
from ftrace.hit.unwind.walk import StackPoint
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *

ProbeFunction: TypeAlias = fn[void, u64, u64, ptr[pt_regs]]
"""func(ip, probe, regs): what a command does. `probe`: the address of its FunctionProbe."""
Act: TypeAlias = fn[void, u64, u64, u64, ptr[StackPoint]]
"""act(argument, 0, 0, point): what a command does that is no switch, as the actions of triggers are called."""


@struct
class FunctionProbe(Structure):
    """The argument of the callback of a command's ops."""

    func: ProbeFunction
    counts: ptr[Table]  # where how often it is still to act at a function is; null: there is no limit
    switch: ptr[u64]  # the switch: tracing_on, or whether an event is recorded
    act: Act
    argument: u64


@native
def function_trace_probe_call(ip: u64, parent_ip: u64, probe: u64, regs: ptr[pt_regs], data: u64) -> i32:
    """The callback of every such ops."""
    cast(ptr[FunctionProbe], probe).func(ip, probe, regs)
    return 0


@native(bounded=False)
def take_one(left: ptr[i64]) -> bool_:
    """Count down, if there is something left."""
    before = load(left, "relaxed")
    while before > 0 and not atomic_cas(left, before, before - 1, "acq_rel"):
        before = load(left, "relaxed")
    return before > 0


@native
def switch_to(probe: ptr[FunctionProbe], ip: u64, on: u64) -> void:
    """Only a hit that changes something counts, and each change counts once, whatever other threads do."""
    if load(probe.switch, "relaxed") == on:
        return
    left = cast(ptr[i64], look_up(load(addressof(probe.counts), "acquire"), ip))
    if left == null:
        store(probe.switch, on, "release")
    elif take_one(left) and not atomic_cas(probe.switch, 1 - on, on, "acq_rel"):
        atomic_add(left, 1, "relaxed")


@native
def function_switch_on(ip: u64, probe: u64, regs: ptr[pt_regs]) -> void:
    """traceon, enable_event."""
    switch_to(cast(ptr[FunctionProbe], probe), ip, 1)


@native
def function_switch_off(ip: u64, probe: u64, regs: ptr[pt_regs]) -> void:
    """traceoff, disable_event."""
    switch_to(cast(ptr[FunctionProbe], probe), ip, 0)


@native
def function_act(ip: u64, probe: u64, regs: ptr[pt_regs]) -> void:
    """snapshot, dump, cpudump."""
    state = cast(ptr[FunctionProbe], probe)
    left = cast(ptr[i64], look_up(load(addressof(state.counts), "acquire"), ip))
    if left == null or take_one(left):
        point: StackPoint = zeroed
        point.ip = ip
        point.sp = regs.sp
        point.bp = regs.bp
        state.act(state.argument, 0, 0, addressof(point))


@native
def function_act_when_on(ip: u64, probe: u64, regs: ptr[pt_regs]) -> void:
    """stacktrace: a hit while the top level does not record counts for nothing. ftrace_stacktrace_count()."""
    if load(cast(ptr[FunctionProbe], probe).switch, "relaxed") != 0:
        function_act(ip, probe, regs)


FUNCTIONS = (
    function_trace_probe_call,
    function_switch_on,
    function_switch_off,
    function_act,
    function_act_when_on,
    table_set,
)
