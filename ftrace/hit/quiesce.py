"""Quiescing: waiting until no thread is inside what was replaced, or can still enter it.

A hit marks its task (`rec` becomes non-zero) before it loads its site's list, and notes the list (`list`) when it has. So
after the lists have been swapped and a membarrier has passed, whoever is not marked will find the new list, and whoever has
noted one that was not replaced, or that it is in the hit of a kprobe and in no list, is in no handler that goes. The others
are waited for until the mark has gone or another hit has begun. A hit within another one takes the note away meanwhile. A
thread that blocks in a probed function, outside any handler, is not marked.
"""

from __future__ import annotations

from ftrace.hit.nodes import below
from sandbox.native import (
    addressof,
    bool_,
    cast,
    i64,
    load,
    native,
    null,
    ptr,
    syscall,
    u32,
    u64,
    volatile_load,
    volatile_store,
)
from sandbox.process.nap import nap
from sandbox.threads.barrier import process_barrier
from sandbox.threads.tasks import NODES, Node, Task, claimed_high, current, task_at
from sandbox.x86_64.syscalls import SYS_SCHED_YIELD

_YIELDS = 200


@native(inline=True)
def is_elsewhere(task: ptr[Task], lists: ptr[u64], count: u64) -> bool_:
    """Whether the task is in a list that is known, and none of `lists`; null stands for all there are."""
    inside = volatile_load(addressof(task.list))
    if lists == null or inside == 0:
        return False
    for index in range(count):  # noqa: SIM110 (the language has no all())
        if cast(u32, lists[index]) == inside:
            return False
    return True


@native
def wait_for_task(task: ptr[Task], lists: ptr[u64], count: u64) -> bool_:
    """Return once the task has been seen outside, or has begun another outermost hit. False: it waits like this itself.

    A hit counts itself when it has the list already: the first count after ours may be its own, the second is another's. On
    the fast path nothing tells one hit from the next; it is over soon, and the task is seen outside before long.
    """
    rounds: u64 = 0
    serial = volatile_load(addressof(task.serial))
    while volatile_load(addressof(task.rec)) != 0 and cast(i64, volatile_load(addressof(task.serial)) - serial) < 2:
        if is_elsewhere(task, lists, count):
            return True
        if volatile_load(addressof(task.waiting)) != 0:
            return False
        if rounds < _YIELDS:
            syscall(SYS_SCHED_YIELD, 0, 0, 0, 0, 0, 0)
        else:
            nap()
        rounds += 1
    return True


@native
def wait_for_others(me: ptr[Task], lists: ptr[u64], count: u64) -> bool_:
    all_out = True
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        task = task_at(index)
        if task != me and not wait_for_task(task, lists, count):
            all_out = False
    return all_out


@native
def quiesce(lists: ptr[u64], count: u64) -> u32:
    """Wait for every other thread that may be in one of `lists` (null: in any); 1 if none is any more.

    A caller inside a handler does not wait for itself, nor does another that does the same: each would wait for the
    other.
    """
    process_barrier()
    me = current()
    if me == null or me.rec == 0:
        return cast(u32, wait_for_others(me, lists, count))
    volatile_store(addressof(me.waiting), 1)
    wait_for_others(me, lists, count)
    volatile_store(addressof(me.waiting), 0)
    return 0


@native
def is_pinned(probes: u64) -> bool_:
    """Whether a node on any shadow stack came in with this list. Asked after `quiesce`, so that none can be added.

    A record that is just being claimed for the first time has neither a top nor a bottom yet.
    """
    high = load(addressof(claimed_high), "acquire")
    for index in range(high):
        task = task_at(index)
        bottom = cast(u64, task) + NODES
        node = cast(ptr[Node], volatile_load(cast(ptr[u64], addressof(task.top))))
        while cast(u64, node) > bottom:
            if node.probes == probes:
                return True
            node = below(node)
    return False
