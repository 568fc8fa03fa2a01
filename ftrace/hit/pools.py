"""Return-node pools: exactly `nr_maxactive` nodes in flight, without a counter that threads share.

Until the first shortage, a task takes nodes from its own credits and returns them there, unlocked; a task without credits
claims an unclaimed node. When no unclaimed node is left, the pool is *switched* for good to one shared atomic counter, and
all credits are moved there. A task touches its credits only while `rec` has CREDIT set, and by single instructions; the switch
waits until no other task has CREDIT set. A hit that interrupts such a task (in a signal handler) clears CREDIT while it lasts:
if the credit is gone afterwards, the interrupted hit takes the slow path; a credit returned too late is donated.
"""

from __future__ import annotations

from ftrace.hit.left_hits import is_left_by_other
from ftrace.hit.nodes import below, is_armed, probes_of
from ftrace.hit.parking import EMPTY
from ftrace.hit.records import POOL_SHARED, SWITCHING, Probe
from ftrace.hit.recursion import CREDIT, SWITCH
from sandbox.native import *
from sandbox.threads.system_calls import process_barrier
from sandbox.threads.tasks import COUNTERS, CREDIT_UNIT, HITS_MASK, Counters, Task, claimed_high, counters, task_at
from sandbox.x86_64.syscalls import SYS_SCHED_YIELD

_OFTEN = 1024
"""After so many rounds it is checked whether a thread has left its hit."""


@native(inline=True)
def credits_of(line: ptr[Counters]) -> i64:
    return cast(i64, volatile_load(addressof(line.tally))) >> 48


@native(inline=True)
def empty_credits(line: ptr[Counters]) -> i64:
    """Take all credits out of a line, while `count_hit` may still count hits there."""
    old = load(addressof(line.tally), "relaxed")
    while not atomic_cas(addressof(line.tally), old, old & HITS_MASK, "acq_rel"):
        old = load(addressof(line.tally), "relaxed")
    return cast(i64, old) >> 48


@native(inline=True)
def count_hit(task: ptr[Task], probe: ptr[Probe]) -> void:
    """One hit more, in the word that also holds credits, which another thread takes out while it switches the pool."""
    line = counters(task, probe.counters)
    task.rec |= CREDIT
    signal_fence()
    if volatile_load(addressof(probe.flags)) & (SWITCHING | POOL_SHARED) == SWITCHING:
        atomic_add(addressof(line.tally), 1, "relaxed")
    else:
        single_add(addressof(line.tally), 1)
    signal_fence()
    task.rec &= ~cast(u32, CREDIT)


@native
def wait_for_credits(me: ptr[Task]) -> void:
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        task = task_at(index)
        rounds: u64 = 0
        while task != me and volatile_load(addressof(task.rec)) & CREDIT != 0:
            syscall(SYS_SCHED_YIELD, 0, 0, 0, 0, 0, 0)
            rounds += 1
            if rounds % _OFTEN == 0 and is_left_by_other(task):
                break


@native
def gather_credits(probe: ptr[Probe]) -> i64:
    total: i64 = 0
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        task = task_at(index)
        page = probe.counters - COUNTERS >> 12
        if task.credit_pages[page >> 6] >> (page & 63) & 1 != 0:
            line = counters(task, probe.counters)
            total += empty_credits(line)
            line.granted = 0
    return total


@native(noinline=True)
def pool_switch(task: ptr[Task], probe: ptr[Probe]) -> void:
    """Leave the contention-free mode. A second caller waits for the first."""
    old = atomic_or(addressof(probe.flags), SWITCHING, "acq_rel")
    if old & SWITCHING != 0:
        while load(addressof(probe.flags), "acquire") & POOL_SHARED == 0:
            syscall(SYS_SCHED_YIELD, 0, 0, 0, 0, 0, 0)
        return
    process_barrier()
    wait_for_credits(task)
    atomic_add(addressof(probe.pool_shared), gather_credits(probe), "acq_rel")
    atomic_or(addressof(probe.flags), POOL_SHARED, "acq_rel")


@native(inline=True)
def take_one(nodes: ptr[i64]) -> bool_:
    """One of the nodes that all tasks share, if there is one left."""
    free = load(nodes, "relaxed")
    while free > 0:
        if atomic_cas(nodes, free, free - 1, "acq_rel"):
            return True
        free = load(nodes, "relaxed")
    return False


@native(inline=True)
def take_credit(task: ptr[Task], probe: ptr[Probe]) -> u32:
    """1: taken. 0: none left. 2: the pool is shared or about to be."""
    line = counters(task, probe.counters)
    task.rec |= CREDIT
    signal_fence()
    result: u32 = 0
    if volatile_load(addressof(probe.flags)) & (SWITCHING | POOL_SHARED) != 0:
        result = 2
    elif credits_of(line) > 0:
        single_sub(addressof(line.tally), CREDIT_UNIT)
        result = 1
        if credits_of(line) < 0:  # gathered by a signal handler's hit
            single_add(addressof(line.tally), CREDIT_UNIT)
            result = 2
    signal_fence()
    task.rec &= ~cast(u32, CREDIT)
    return result


@native
def note_credits(task: ptr[Task], probe: ptr[Probe]) -> void:
    """A node that a task takes for the first time becomes its credit; the page of its line is marked for `gather_credits`."""
    counters(task, probe.counters).granted += 1
    page = probe.counters - COUNTERS >> 12
    atomic_or(addressof(task.credit_pages[page >> 6]), cast(u64, 1) << (page & 63), "relaxed")


@native
def nodes_of(task: ptr[Task], probe: u64) -> i64:
    """How many of a probe's return nodes the calls on a shadow stack have."""
    held: i64 = 0
    node = task.top
    while node != task.bottom:
        probes = probes_of(node)
        if node.stub != EMPTY:
            for index in range(probes.count):
                if cast(u64, probes.items[index].probe) == probe and is_armed(node, index):
                    held += 1
        node = below(node)
    return held


@native(noinline=True)
def recover_credits(task: ptr[Task], probe: ptr[Probe]) -> bool_:
    """The task has no credit left. Whether hits that were left had taken some, which it has again."""
    lost = counters(task, probe.counters).granted - nodes_of(task, cast(u64, probe))
    for _ in range(lost):
        pool_give(task, probe)
    return lost > 0


@native
def pool_take(task: ptr[Task], probe: ptr[Probe], interrupted: bool_) -> bool_:
    """One node for this call.

    `interrupted`: the hit came in a signal that stopped this task while it touched credits or switched a pool.
    """
    taken = take_credit(task, probe)
    if taken == 0 and task.abandoned != 0 and not interrupted and recover_credits(task, probe):
        taken = take_credit(task, probe)
    if taken == 1:
        return True
    if taken == 0:
        if take_one(addressof(probe.pool_unclaimed)):
            note_credits(task, probe)
            return True
        if interrupted:
            return False
        task.rec |= SWITCH
        signal_fence()
        pool_switch(task, probe)
        signal_fence()
        task.rec &= ~cast(u32, SWITCH)
    if interrupted and volatile_load(addressof(probe.flags)) & POOL_SHARED == 0:
        return False
    while volatile_load(addressof(probe.flags)) & POOL_SHARED == 0:
        if volatile_load(addressof(probe.flags)) & SWITCHING == 0:
            # Nobody switches: the parent of a fork that C code has made has taken the credit, in counters that both still share.
            return take_one(addressof(probe.pool_unclaimed))
        pause()
    return take_one(addressof(probe.pool_shared))


@native(inline=True)
def give_credit(task: ptr[Task], probe: ptr[Probe]) -> void:
    """One node back; CREDIT is set."""
    if volatile_load(addressof(probe.flags)) & (SWITCHING | POOL_SHARED) != 0:
        atomic_add(addressof(probe.pool_shared), 1, "acq_rel")
    else:
        single_add(addressof(counters(task, probe.counters).tally), CREDIT_UNIT)
        signal_fence()
        if volatile_load(addressof(probe.flags)) & (SWITCHING | POOL_SHARED) != 0:
            pool_donate(task, probe)


@native
def pool_give(task: ptr[Task], probe: ptr[Probe]) -> void:
    task.rec |= CREDIT
    signal_fence()
    give_credit(task, probe)
    signal_fence()
    task.rec &= ~cast(u32, CREDIT)


@native
def pool_donate(task: ptr[Task], probe: ptr[Probe]) -> void:
    """Donate the credits to a pool that was switched while a signal handler ran; CREDIT is set."""
    atomic_add(addressof(probe.pool_shared), empty_credits(counters(task, probe.counters)), "acq_rel")


@native
def sum_counters(offset: u64, totals: ptr[Counters]) -> void:
    """The sum of the lines at `offset` of every task ever claimed, without credits."""
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        line = counters(task_at(index), offset)
        totals.tally += line.tally & HITS_MASK
        totals.missed_recursion += line.missed_recursion
        totals.missed_nodes += line.missed_nodes
        totals.missed_busy += line.missed_busy
        totals.missed_depth += line.missed_depth
        totals.missed_context += line.missed_context
        totals.missed_interpreter += line.missed_interpreter


@native
def clear_counters(offset: u64) -> void:
    """Zero that line everywhere. No call refers to its probe any more."""
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        words = cast(ptr[u64], counters(task_at(index), offset))
        for word in range(sizeof(Counters) >> 3):
            if words[word] != 0:
                words[word] = 0


@native
def probe_set_flags(probe: ptr[Probe], on: u64, off: u64) -> void:
    atomic_or(addressof(probe.flags), cast(u32, on), "acq_rel")
    atomic_and(addressof(probe.flags), ~cast(u32, off), "acq_rel")
