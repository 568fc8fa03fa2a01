"""Laying out a probe list for the trampolines. ftrace.sites.lists chooses its contents and its trampolines."""

from __future__ import annotations

from ftrace.hit.records import ARMED_IN_NODE, CALLBACK, WANTS_REGS, Item, Probe, ProbeList
from sandbox.native import (
    Structure,
    addressof,
    cast,
    extern,
    fn,
    native,
    offsetof,
    ptr,
    sizeof,
    struct,
    u16,
    u32,
    u64,
    void,
)
from sandbox.threads.tasks import HIT_WITH_CREDIT, Node

ftrace_nothing = extern("ftrace_nothing", fn[void])
"""The entry handler of a probe that has none."""


@struct
class Member(Structure):
    """What goes into a list."""

    probe: ptr[Probe]
    header: u64  # bytes in front of its entry data, if it is not alone


@native
def fill_item(item: ptr[Item], probe: ptr[Probe], index: u64) -> void:
    """But for where its data is."""
    item.probe = probe
    item.counters = probe.counters
    item.data_size = probe.data_size
    item.entry = cast(u64, probe.entry)
    if item.entry == 0:
        item.entry = cast(u64, ftrace_nothing)
    item.exit = cast(u64, probe.exit)
    item.bit = cast(u64, 1) << index if item.exit != 0 and index < ARMED_IN_NODE else 0
    item.takes = cast(u64, HIT_WITH_CREDIT) if item.exit != 0 else 1


@native
def fill_list(probes: ptr[ProbeList], members: ptr[Member], count: u64) -> void:
    """But for its trampolines. The memory is zero."""
    end: u64 = 0
    for index in range(count):
        item = addressof(probes.items[index])
        probe = members[index].probe
        fill_item(item, probe, index)
        if count > 1:
            end += members[index].header
        item.data = cast(u32, end)
        if item.data_size != 0:
            item.in_node = cast(u32, offsetof(Node, "inline_data") + end)
        end += cast(u64, item.data_size) + 7 & ~7
        if probe.kind & WANTS_REGS != 0 or probe.kind & CALLBACK == 0:
            probes.wants_regs = 1
    probes.count = cast(u32, count)
    if count > ARMED_IN_NODE:
        probes.armed_at = cast(u32, end)
        end += (count + 63 >> 6) * 8
    elif count != 0:
        probes.last = cast(u16, (count - 1) * sizeof(Item))
    probes.data_size = cast(u32, end)
    probes.data_words = cast(u32, end >> 3)
