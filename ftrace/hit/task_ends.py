"""Releasing the nodes of a shadow stack when its thread ends, or in the child of a fork."""

from __future__ import annotations

from ftrace.hit.follow_fork import join_lists
from ftrace.hit.nodes import EXIT_FROM_STUB, below, frame_of, is_armed, probes_of, real_caller, word_at
from ftrace.hit.parking import EMPTY, is_parked
from ftrace.hit.pools import gather_credits
from ftrace.hit.records import POOL_SHARED, SWITCHING, Probe
from ftrace.hit.rethook import is_dead, node_abandon, pop_empty
from ftrace.hit.stacks import readable
from sandbox.native import addressof, array, cast, i64, native, null, ptr, syscall, u32, u64, void, zeroed
from sandbox.threads.tasks import CLAIMED, Node, Task, claimed_high, current, task_at, task_free
from sandbox.x86_64.syscalls import SYS_GETTID


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


@native
def pool_after_fork(probe: ptr[Probe]) -> void:
    """In the child of a fork: all nodes of the pool are free except those that this thread holds.

    Nodes that threads of the parent had taken are free again, and a switch that they had begun is completed.
    """
    if probe.nr_nodes == 0:
        return
    free = cast(i64, probe.nr_nodes)
    me = current()
    if me != null:
        free -= nodes_of(me, cast(u64, probe))
    gather_credits(probe)
    if probe.flags & SWITCHING != 0:
        probe.pool_shared = free
        probe.flags |= POOL_SHARED
    else:
        probe.pool_unclaimed = free


@native
def unhook(node: ptr[Node], sp: u64) -> void:
    """Have a call that can still return do so directly to its caller. `sp`: the stack pointer, or a little above it."""
    if node.stub <= EMPTY or is_parked(node):
        return
    slot = frame_of(node)
    if not is_dead(node, sp) and readable(slot) and word_at(slot)[0] == node.stub + EXIT_FROM_STUB:
        word_at(slot)[0] = real_caller(node)


@native
def rethook_flush_task(task: ptr[Task]) -> void:
    """A thread is about to end: release its nodes without running handlers. The destructor of the tasks' key.

    The C library function that calls this one, and its callers, will return once more, after the nodes are gone.
    """
    join_lists(task, 0)
    here: array[u64, 1] = zeroed
    node = task.top
    while node != task.bottom:
        unhook(node, cast(u64, addressof(here[0])))
        node = below(node)
    pop_empty(task)
    while task.top != task.bottom:
        node_abandon(task, task.top)
    task_free(task)


@native
def tasks_after_fork() -> u64:
    """In the child of a fork: renew the calling thread's tid, and free the other threads' records. Returns the former tid, or 0.

    Nodes of other threads may be half filled, so they are not read: `pool_after_fork` counts what is left.
    """
    me = current()
    before: u64 = 0
    for index in range(claimed_high):
        task = task_at(index)
        if task == me:
            before = cast(u64, task.tid)
            task.tid = cast(u32, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))
        elif task.state == CLAIMED:
            task_free(task)
    return before
