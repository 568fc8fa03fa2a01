"""The records that a hit reads: probes, immutable probe lists, and the data of a stub.

`fill_list` lays out a probe list for the trampolines; ftrace.core.sites.lists chooses its contents and its trampolines.
"""

from __future__ import annotations

from typing import TypeAlias

from sandbox.native import *
from sandbox.threads.tasks import HIT_WITH_CREDIT, Node

# Probe.flags: a hit takes the slow path if they are not 0.
DISABLED = 1
STOPPED = 2  # rethook_stop: no new nodes, no exit handlers
FILTERED = 4  # has a thread filter or a limit of hits
POOL_SHARED = 8  # the node pool has left its contention-free mode
SWITCHING = 16  # ... and is just doing so
COMPLETE = 32  # the handlers are not native functions that keep their registers
EXHAUSTED = 64  # max_hits reached: no more entries; exits of earlier calls still run

SHARED_BUSY = 1
"""Task.kprobe while a KPROBE_SHARED handler runs and no kprobe is (kprobe_busy_begin)."""

# Probe.kind
HAS_ENTRY = 1
HAS_EXIT = 2
FOREIGN = 4  # C code: vector registers and errno are kept from it
PYTHON = 8  # also never called in an asynchronous context
KPROBE_SHARED = 16
CALLBACK = 32  # a bare ftrace_ops: func(ip, parent_ip, ops, regs), no recursion lock of its own
ASSIST = 64  # FTRACE_OPS_FL_RECURSION or _RCU: called under the LIST lock even when alone
WANTS_REGS = 128  # FTRACE_OPS_FL_SAVE_REGS
ENTRY_ARGUMENTS = 256  # a native entry handler that uses only argument registers
ENTRY_SP = 512  # ... and sp
ENTRY_REGS = 1024  # ... that looks at others
EXIT_RESULTS = 2048  # a native exit handler that uses only result registers
EXIT_REGS = 4096  # ... that looks at others
KPROBE = 8192  # of one kprobe or kretprobe, which is alone on the function
EXIT_VALUE = 32768  # a native exit handler that looks at no register but ax
UNLOCKED = 16384  # ... and not on an ftrace location: its entries take no recursion lock
LEAN = 65536  # its handlers have lean forms, for a function that has no other probe (Probe.lean_entry)
IN_C = 131072  # beside PYTHON: a callback of ctypes or cffi, called as C code is

MAX_PROBES_PER_SITE = 1024
ARMED_IN_NODE = 64
"""Longer lists have a bit for each probe after their entry data, instead of Node.armed."""

Handler: TypeAlias = fn[i32, u64, u64, u64, u64, u64]
"""entry(fp, entry_ip, ret_ip, regs, entry_data); an exit handler's result is ignored."""


@struct
class Early(Structure):
    """The head of a filter or histogram that may handle entries, or hooked returns, of a probe before its trampoline saves
    the registers that its handler uses. The function returns 1 if it has handled the hit, and 0, having done nothing, if the
    handler must be called.

    At an entry, function(di, si, dx, cx, r8, r9, early, ax, stub, parent), preserve_most, gets the argument registers as the
    site has them, the address of this record, and the return addresses of the trampoline and of the traced function.
    At a return, function(early, ip, parent, ax, data, task) has the C calling convention.
    """

    function: u64  # its address; 0: there is none at present


@struct
class Probe(Structure):
    """The native half of an ftrace_ops."""

    flags: u32
    kind: u32
    entry: Handler
    exit: Handler
    entry_cookie: u64  # what the handlers get as `fp`
    exit_cookie: u64
    counters: u64  # offset of this probe's Counters from a Task
    data_size: u32
    pool_unclaimed: i64  # nodes that no task has taken as credit yet
    pool_shared: i64  # free nodes, once POOL_SHARED
    missed_task: u64
    hits_left: i64  # FILTERED: runs out at max_hits
    max_hits: i64  # 0: no limit
    thread: u32  # FILTERED: the only thread whose hits count; 0: all
    nr_nodes: u32
    action: u64  # address of a built-in action's ActionState
    early: u64  # address of an Early, or 0
    # LEAN: forms of the handlers in the C calling convention, which may destroy what that allows. The trampolines save no more
    # than that, and give them the task instead of pt_regs.
    lean_entry: u64  # entry(fp, entry_ip, ret_ip, task, entry_data)
    lean_exit: u64  # exit(fp, entry_ip, the result (ax), task, entry_data)


@struct
class Item(Structure):
    """A probe in a list, with what the trampolines need at hand."""

    probe: ptr[Probe]
    entry: u64
    exit: u64
    counters: u64
    data: u32  # offset of its entry data in the node's data area
    data_size: u32
    in_node: u32  # offset of its entry data in a node; 0 if it has none, or there is too much for a node
    bit: u64  # its bit in Node.armed, if that is where the list has it; 0 if it has no exit handler
    takes: u64  # added to the tally by a plain hit: 1, minus a credit if it has an exit handler


@struct
class ProbeList(Structure):
    """The probes of a site, newest first, followed by an item without a probe. Immutable; replaced as a whole."""

    entry: u64  # entry trampoline
    exit: u64  # exit trampoline
    count: u32
    data_size: u32  # all entry data together, bytes
    data_words: u32  # what the fast path has to clear, in words of 8
    wants_regs: u16  # an ops requires all registers
    last: u16  # offset of the last item from the first, if there are no more than ARMED_IN_NODE
    armed_at: u32  # where in the entry data the bits are, if there are more
    preserving: u32  # 1: for code without stubs, where every vector register is live
    items: array[Item, 1025]


@struct
class StubRecord(Structure):
    """The words before and after a stub's code (ftrace.hit.x86_64.stubs)."""

    ip: u64  # the site: entry_ip
    after_prologue: u16  # 1: the return slot is at 8(%rbp) (mcount), and the classic swap is used
    code: array[u8, 110]
    slot: ptr[ptr[ProbeList]]


ftrace_nothing = extern("ftrace_nothing", fn[void])
"""The entry handler of a probe that has none."""


@struct
class Member(Structure):
    """An element of a list."""

    probe: ptr[Probe]
    header: u64  # bytes in front of its entry data, if it is not alone


@native
def fill_item(item: ptr[Item], probe: ptr[Probe], index: u64) -> void:
    """Fill in all but the place of its data."""
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
