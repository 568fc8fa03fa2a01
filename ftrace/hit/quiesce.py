"""Quiescing: waiting until no thread is inside what was replaced, or can still enter it.

A hit marks its task (`rec` becomes non-zero) before it loads its site's list, and stores the list in `list` afterwards. Once
the lists have been swapped and a membarrier has passed, an unmarked task will find the new list. A task whose `list` was not
replaced, or that is in a kprobe's hit and in no list, is in no handler that is about to be freed. The other tasks are waited for
until they are unmarked or have begun another hit. A nested hit clears `list` while it lasts. A thread that blocks in a probed
function, outside of handlers, is not marked.
"""

from __future__ import annotations

from ftrace.hit.adopted_calls import adopted
from ftrace.hit.left_hits import is_left_by_other
from ftrace.hit.nodes import below
from sandbox.native import *
from sandbox.threads.system_calls import nap, process_barrier
from sandbox.threads.tasks import NODES, Node, Task, claimed_high, current, task_at
from sandbox.x86_64.syscalls import SYS_SCHED_YIELD

_YIELDS = 200
_OFTEN = 64
"""After so many rounds it is checked whether a thread has left its hit, or ended in it."""


@native(inline=True)
def is_elsewhere(task: ptr[Task], lists: ptr[u64], count: u64) -> bool_:
    """Whether the task's list is known and not in `lists`; null means all lists."""
    inside = volatile_load(addressof(task.list))
    if lists == null or inside == 0:
        return False
    for index in range(count):  # noqa: SIM110 (the language has no all())
        if cast(u32, lists[index]) == inside:
            return False
    return True


@native
def wait_for_task(task: ptr[Task], lists: ptr[u64], count: u64) -> bool_:
    """Return once the task has been seen outside of hits, or has begun another outermost hit. False: it is quiescing itself.

    A hit increments `serial` after it has loaded the list: the first increment may be its own, the second is another hit's. Hits
    on the fast path do not increment it, but are short: the task is soon seen outside.
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
        elif rounds % _OFTEN == 0 and is_left_by_other(task):
            return True
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


@native(bounded=False)
def is_pinned(probes: u64) -> bool_:
    """Whether a node on any shadow stack came in with this list. Asked after `quiesce`, so that none can be added."""
    before = load(addressof(adopted), "acquire")
    found = has_node(probes)
    while (
        not found and load(addressof(adopted), "acquire") != before
    ):  # a node may have gone to a stack already looked at
        before = load(addressof(adopted), "acquire")
        found = has_node(probes)
    return found


@native
def has_node(probes: u64) -> bool_:
    """A record that is just being claimed for the first time has neither a top nor a bottom yet."""
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
