"""Native triggers: the structures that hits use, and the functions that run when an event with triggers is hit.

A recorder calls `run_triggers` once for each hit. If no trigger of the event needs the record, it is called before the
record is made, with null. Otherwise it is called with the complete record before the commit; and if the result is not 0,
`run_post_triggers` is called with the result after the commit.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.unwind.walk import StackPoint
from sandbox.native import *

UNLIMITED = (1 << 64) - 1
"""The count of a trigger without a limit."""
TRACEOFF, STACKTRACE, LATE_HIST, SNAPSHOT = 1, 2, 4, 8
"""Bits of triggers that act after the commit.

Histograms with variables or actions do, so that generated events are later than the event. A snapshot is taken first: it has the
record, which the kernel reserves before its triggers see it, and nothing that other triggers record.
"""

Condition: TypeAlias = fn[u64, ptr[u8], u64]
"""condition(record, length), of a compiled filter: not 0 if the trigger acts."""
Call: TypeAlias = fn[void, u64, ptr[u8], u64, ptr[StackPoint]]
"""call(argument, record, length, point): the action of a trigger without a switch. `point`: of the hit; null: unknown."""


@struct
class NativeTrigger(Structure):
    """A trigger, as hits use it."""

    condition: Condition
    left: u64  # remaining count, or UNLIMITED
    switch: ptr[u64]  # set to `value` if it differs; null: `call` is called
    value: u64
    call: Call
    argument: u64
    paused: u64
    post: u64  # the bit, if the trigger acts after the commit; else 0
    is_hist: u64


@struct
class TriggerTable(Structure):
    """The triggers of an event, in the order in which they act. Immutable once published."""

    count: u64
    needs_record: u64  # not 0: a trigger reads the record, or acts after the commit
    triggers: array[ptr[NativeTrigger], 1]  # as many as `count` says


@struct
class HistSwitch(Structure):
    """The argument of enable_hist and disable_hist."""

    table: ptr[ptr[TriggerTable]]  # the other event's pointer to its table
    paused: u64


@native
def take_one(left: ptr[u64]) -> bool_:
    """Count down. Returns False if the count is used up."""
    before = load(left, "relaxed")
    while before != UNLIMITED:
        if before == 0:
            return False
        if atomic_cas(left, before, before - 1, "acq_rel"):
            return True
        before = load(left, "relaxed")
    return True


@native(noinline=True)
def act(trigger: ptr[NativeTrigger], record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Have a trigger act. A switch that is already in its position does not use up the count."""
    if trigger.switch != null and load(trigger.switch, "relaxed") == trigger.value:
        return
    if not take_one(addressof(trigger.left)):
        return
    if trigger.switch != null:
        store(trigger.switch, trigger.value, "release")
    else:
        trigger.call(trigger.argument, record, length, point)


@native(inline=True)
def entry(table: ptr[TriggerTable], index: u64) -> ptr[NativeTrigger]:
    return cast(ptr[ptr[NativeTrigger]], addressof(table.triggers))[index]


@native
def run_triggers(table: ptr[TriggerTable], record: ptr[u8], length: u64, point: ptr[StackPoint]) -> u64:
    """Have the triggers act whose condition passes `record`; null: all. Returns the bits of those that act after the commit."""
    post: u64 = 0
    for index in range(table.count):
        trigger = entry(table, index)
        if load(addressof(trigger.paused), "relaxed") != 0:
            continue
        if record == null:
            act(trigger, record, length, point)
        elif cast(u64, trigger.condition) == 0 or trigger.condition(record, length) != 0:
            if trigger.post != 0:
                post |= trigger.post
            elif likely(trigger.is_hist != 0):
                trigger.call(trigger.argument, record, length, point)
            else:
                act(trigger, record, length, point)
    return post


@native
def run_post_triggers(
    table: ptr[TriggerTable], post: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]
) -> void:
    """Have the triggers act whose bits `run_triggers` returned."""
    first = post & SNAPSHOT
    if first != 0:
        act_after(table, first, record, length, point)
    act_after(table, post ^ first, record, length, point)


@native
def act_after(table: ptr[TriggerTable], post: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Have the triggers of some bits act."""
    for index in range(table.count):
        trigger = entry(table, index)
        if trigger.post & post != 0 and load(addressof(trigger.paused), "relaxed") == 0:
            if trigger.is_hist == 0:
                act(trigger, null, 0, point)
            elif cast(u64, trigger.condition) == 0 or trigger.condition(record, length) != 0:
                trigger.call(trigger.argument, record, length, point)


@native
def switch_hists(argument: u64, record: ptr[u8], length: u64, point: ptr[StackPoint]) -> void:
    """Pause or continue every histogram of another event."""
    switch = cast(ptr[HistSwitch], argument)
    table = load(switch.table, "acquire")
    if table == null:
        return
    for index in range(table.count):
        trigger = entry(table, index)
        if trigger.is_hist != 0:
            store(addressof(trigger.paused), switch.paused, "relaxed")


FUNCTIONS = (act, run_triggers, run_post_triggers, switch_hists)
