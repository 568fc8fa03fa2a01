"""Calls that count only if their values pass a filter, or apart by one of their values. Native.

What is asked of a function's values is a generated function (ftrace.tracing.events.hit.selection_source): it reads arguments at
the entry; where it asks for the result, the arguments that it needs are saved at the entry, and it is called at the return.
"""

from __future__ import annotations

from typing import TypeAlias

from ftrace.hit.account import TimedCall
from ftrace.hit.call_table import CallTable, arguments_in, call_begins, call_ends, clocks_begin
from ftrace.hit.hashing import entry_of
from ftrace.hit.records import Probe
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *

Chosen: TypeAlias = fn_preserve_most[u64, u64, u64, u64, u64, ptr[pt_regs], ptr[u64], ptr[u64]]
"""chosen(state, condition, ip, ret_ip, regs, saved, by): not 0 if the call counts.

Writes what tells calls apart to by[0]. by[1] is the address of the table in which a text gets its number.
"""


@struct
class Selection(Structure):
    """What is asked of the calls of a function, in a hash table."""

    ip: u64  # 0: none
    chosen: Chosen
    save: u64  # address of a function as `chosen` that saves arguments at the entry; 0: none is needed
    condition: u64  # address of a compiled filter, or 0
    at_return: u64  # 1: it is decided at the return


@struct
class Selections(Structure):
    """The selections of the functions of a probe, which its `action` points to."""

    table: u64  # address of its CallTable
    state: u64  # address of an EventState, for scratch memory
    texts: u64  # address of the texts that tell calls apart (ftrace.hit.texts), or 0
    selections: u64  # address of a FunctionTable of Selection
    mask: u64
    shift: u64


@native(inline=True)
def selection_of(selections: ptr[Selections], ip: u64) -> ptr[Selection]:
    """The selection of a function; null if it has none."""
    found = entry_of(selections.selections, sizeof(Selection), selections.mask, selections.shift, ip)
    return cast(ptr[Selection], found)


@native(cc="preserve_most")
def selected_entry(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[TimedCall]) -> i32:
    """Count the entry if the call is chosen, and wait for its return."""
    selections = cast(ptr[Selections], probe.action)
    selection = selection_of(selections, ip)
    if selection == null:
        return 1
    table = cast(ptr[CallTable], selections.table)
    kept = arguments_in(data, table.account.measures)
    by: array[u64, 2] = zeroed
    by[0] = ret_ip
    by[1] = selections.texts
    if selection.at_return != 0:
        if data != null:
            if selection.save != 0:
                save = cast(Chosen, selection.save)
                save(selections.state, 0, ip, ret_ip, regs, kept, addressof(by[0]))
            clocks_begin(table, table.account.measures, data, 0)
        return 0
    if selection.chosen(selections.state, selection.condition, ip, ret_ip, regs, kept, addressof(by[0])) == 0:
        return 1
    if data != null:
        kept[0] = by[0]
    call_begins(table, table.account.measures, ip, by[0], data)
    return 0


@native(cc="preserve_most")
def selected_exit(probe: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[TimedCall]) -> void:
    """Count the time of a call that was chosen at its entry, or is chosen now."""
    ticks = rdtsc() - data.entered
    selections = cast(ptr[Selections], probe.action)
    selection = selection_of(selections, ip)
    if selection == null:
        return
    table = cast(ptr[CallTable], selections.table)
    kept = arguments_in(data, table.account.measures)
    if selection.at_return == 0:
        call_ends(table, table.account.measures, ip, kept[0], data, ticks)
        return
    by: array[u64, 2] = zeroed
    by[0] = ret_ip
    by[1] = selections.texts
    if selection.chosen(selections.state, selection.condition, ip, ret_ip, regs, kept, addressof(by[0])) != 0:
        cell = call_ends(table, table.account.measures, ip, by[0], data, ticks)
        if cell != null:
            cell.hits += 1


FUNCTIONS = (selected_entry, selected_exit)
