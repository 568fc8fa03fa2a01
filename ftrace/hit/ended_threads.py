"""The shadow stacks of threads that end, and of those that the child of a fork does not have.

A call that can still return, as that of a coroutine, goes on without its node: its return slot gets the address that it returns
to, before the node is released. Its handlers do not run.
"""

from __future__ import annotations

from ftrace.hit.adopted_calls import claim, is_last, unhooked
from ftrace.hit.nodes import EXIT_FROM_STUB, below, frame_of, readable, real_caller, word_at
from ftrace.hit.parking import EMPTY, is_parked
from ftrace.hit.pid_list import join_lists
from ftrace.hit.rethook import is_dead, node_abandon, pop_empty
from sandbox.native import *
from sandbox.threads.tasks import CLAIMED, Node, Task, claimed_high, current, task_at, task_free
from sandbox.x86_64.syscalls import SYS_GETTID, SYS_SCHED_YIELD


@native
def unhook(task: ptr[Task], node: ptr[Node], sp: u64) -> void:
    """Have a call that can still return do so directly to its caller. `sp`: the stack pointer, or a little above it."""
    if node.stub <= EMPTY or is_parked(node):
        return
    slot = frame_of(node)
    hooked = node.stub + EXIT_FROM_STUB
    if not is_dead(node, sp) and readable(slot) and word_at(slot)[0] == hooked and is_last(task, node):
        atomic_add(addressof(unhooked), 1, "release")
        atomic_cas(word_at(slot), hooked, real_caller(node), "acq_rel")  # another thread may be returning from it


_YIELDS = 1000
"""How often a thread that ends lets others run, of which one copies its nodes."""


@native
def await_adopters(task: ptr[Task]) -> void:
    """The task's nodes are gone. Wait for those who are still reading them: the record will be another thread's."""
    tries: u64 = 0
    for index in range(load(addressof(claimed_high), "acquire")):
        other = task_at(index)
        while load(addressof(other.adopts_from), "acquire") == cast(u64, task) and tries < _YIELDS:
            syscall(SYS_SCHED_YIELD, 0, 0, 0, 0, 0, 0)
            tries += 1


@native
def rethook_flush_task(task: ptr[Task]) -> void:
    """A thread is about to end: release its nodes without running handlers. The destructor of the tasks' key.

    The C library function that calls this one, and its callers, will return once more, after the nodes are gone.
    """
    join_lists(task, 0)
    here: array[u64, 1] = zeroed  # its address is the stack pointer, nearly
    node = task.top
    while (
        node != task.bottom
    ):  # first all slots, while every node is there: one frame's nodes need each other's parents
        unhook(task, node, cast(u64, addressof(here[0])))
        node = below(node)
    pop_empty(task)
    while task.top != task.bottom:
        if task.top.stub == 0 or claim(task.top):
            node_abandon(task, task.top)
        pop_empty(task)
    await_adopters(task)
    task_free(task)


@native
def unhook_coroutines(task: ptr[Task]) -> void:
    """In the child of a fork, another thread's calls: coroutines that are in them may be resumed, and will find no nodes.

    The newest node may be half filled; a record that is just being claimed has no top. `pool_after_fork` counts what is left.
    """
    node = task.top
    if task.rec != 0 and cast(u64, node) > cast(u64, task.bottom):
        node = below(node)
    while cast(u64, node) > cast(u64, task.bottom):
        slot = frame_of(node)
        is_call = node.stub > EMPTY and not is_parked(node) and readable(slot)
        if is_call and word_at(slot)[0] == node.stub + EXIT_FROM_STUB and is_last(task, node):
            atomic_add(addressof(unhooked), 1, "release")
            word_at(slot)[0] = real_caller(node)
        node = below(node)


forked_from = global_var(u64, 0, name="forked_from")
"""In the child of a fork, the tid that its thread had in the parent; 0 if that thread had never hit a probe."""


@native(export=True)
def tasks_in_child() -> void:
    """In the child of a fork, before anything else: renew the forking thread's tid, and free the other threads' records."""
    global forked_from
    me = current()
    forked_from = 0
    for index in range(claimed_high):
        task = task_at(index)
        if task == me:
            forked_from = cast(u64, task.tid)
            task.tid = cast(u32, syscall(SYS_GETTID, 0, 0, 0, 0, 0, 0))
            task.pid = task.tid
        elif task.state == CLAIMED:
            unhook_coroutines(task)
            task_free(task)
