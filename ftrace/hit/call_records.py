"""Entries and returns, with their values, in a process's ring buffer, which another process reads (ftrace.hit.call_table).

A record has words: the common fields; the function; the return address, or the register ax; the place on the shadow stack
(`place_at_entry`, `place_at_return`) and, above bit 32, 1 if values follow, at bit 40 whether they have vector registers, at
bit 44 the words of the stack, at bit 56 the number of targets.
"""

from __future__ import annotations

from ftrace.hit.account import TimedCall
from ftrace.hit.call_table import CallTable, arguments_in, call_ends, count_begin, has_part
from ftrace.hit.call_values import (
    ARGUMENT_WORDS,
    RESULT_WORDS,
    ValuePlan,
    ValuePlans,
    error_number,
    keep_arguments,
    values_plan,
    write_values,
)
from ftrace.hit.nodes import place_at_entry, place_at_return, true_parent
from ftrace.hit.records import Probe
from ftrace.hit.ring_buffer.records import Mark, Reservation
from ftrace.hit.ring_buffer.writer import commit, reserve_at, shorten
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import current

ENTRY, EXIT = 1, 2
"""The types of the records."""
HEAD_WORDS = 4


@native(inline=True)
def layout_of(plan: ptr[ValuePlan]) -> u64:
    return 1 << 32 | plan.vectors << 40 | plan.stack << 44 | plan.count << 56


@native(noinline=True)
def entry_values(record: ptr[u64], plan: ptr[ValuePlan], regs: ptr[pt_regs], kept: ptr[u64]) -> u64:
    """Write the values of an entry; the bytes of the record. `kept`: keeps the registers of the arguments; null: nobody does."""
    record[3] |= layout_of(plan)
    arguments = addressof(record[HEAD_WORDS])
    keep_arguments(arguments, regs)
    if kept != null:
        keep_arguments(kept, regs)
    return 8 * write_values(record, HEAD_WORDS + ARGUMENT_WORDS, plan, arguments, 0, regs.sp)


@native(noinline=True)
def result_values(record: ptr[u64], plan: ptr[ValuePlan], regs: ptr[pt_regs], kept: ptr[u64], error: u64) -> u64:
    """Write the values of a return; the bytes of the record. `kept`: the registers of the arguments."""
    record[3] |= layout_of(plan)
    record[HEAD_WORDS] = regs.dx
    record[HEAD_WORDS + 1] = regs.cx
    record[HEAD_WORDS + 2] = error
    return 8 * write_values(record, HEAD_WORDS + RESULT_WORDS, plan, kept, regs.ax, regs.sp)


@native(cc="preserve_most")
def record_call_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[TimedCall]) -> i32:
    """Count the entry, and record it with its values. The data are followed by the registers of the arguments.

    The call is timed between its two records: so tables and traces agree.
    """
    now = rdtsc()
    plans = cast(ptr[ValuePlans], probe.action)
    table = cast(ptr[CallTable], plans.table)
    caller = true_parent(current(), ret_ip)
    if has_part(table):
        plan = values_plan(plans, ip)
        length = plan.entry.length if plan != null else cast(u64, 8 * HEAD_WORDS)
        mark: Mark = zeroed
        place: Reservation = zeroed
        if reserve_at(now, current(), addressof(table.calls), addressof(mark), addressof(place), ENTRY, length):
            record = cast(ptr[u64], place.event)
            record[1] = ip
            record[2] = caller
            record[3] = place_at_entry(current(), regs.sp, ip)
            if plan != null:
                kept = arguments_in(data, table.account.measures)
                shorten(addressof(place), length, entry_values(record, addressof(plan.entry), regs, kept))
            commit(addressof(mark), addressof(place))
    count_begin(table, table.account.measures, ip, caller, data, now)
    return 0


@native(cc="preserve_most")
def record_call_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[TimedCall]) -> void:
    plans = cast(ptr[ValuePlans], probe.action)
    table = cast(ptr[CallTable], plans.table)
    error = error_number(current())
    now = rdtsc()
    call_ends(table, table.account.measures, ip, ret_ip, data, now - data.entered)
    if has_part(table):
        plan = values_plan(plans, ip)
        length = plan.leave.length if plan != null else cast(u64, 8 * HEAD_WORDS)
        mark: Mark = zeroed
        place: Reservation = zeroed
        if reserve_at(now, current(), addressof(table.calls), addressof(mark), addressof(place), EXIT, length):
            record = cast(ptr[u64], place.event)
            record[1] = ip
            record[2] = regs.ax
            record[3] = place_at_return(current(), regs.sp - 8, ip)
            if plan != null:
                kept = arguments_in(data, table.account.measures)
                shorten(addressof(place), length, result_values(record, addressof(plan.leave), regs, kept, error))
            commit(addressof(mark), addressof(place))


FUNCTIONS = (record_call_entry, record_call_exit)
