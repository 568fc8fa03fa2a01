"""Hooked calls that return in another thread than they began in, as those of coroutines that any thread may resume.

The thread in which such a call returns adopts it: the nodes of its frame are copied onto its shadow stack, and the places that
they leave behind are empty, which their owner pops later. What holds meanwhile:

- The owner changes a node that is on no stack of its own only if the slot no longer has the stub, and when the owner ends. Then
  the slot gets the address that the call returns to, before the node is released.
- If the owner ends meanwhile, `claim` decides who releases the node, so that what its probes gave is given back once.
- Above all nodes of a thread that is in no hit there is none that is being filled.
- If several threads have a node of one slot and stub, the one that was made last is of the call in progress (ftrace.hit.made).
"""

from __future__ import annotations

from ftrace.hit.made import ON_STACK, of_slot
from ftrace.hit.nodes import (
    EXIT_FROM_STUB,
    INLINE_DATA,
    above,
    below,
    is_deferred,
    node_data,
    probes_of,
    real_caller,
    word_at,
)
from ftrace.hit.parking import EMPTY, is_spare, slot_of
from ftrace.hit.rethook import node_release, node_reserve
from ftrace.hit.x86_64.stubs import RETURN_POINT
from sandbox.native import *
from sandbox.threads.tasks import CLAIMED, NODES, Node, Task, claimed_high, task_at
from sandbox.x86_64.syscalls import SYS_SCHED_YIELD

lost_return = extern("ftrace_lost_return", fn[void, u64, u64])

_YIELDS = 100
"""How often another thread is let run that may be filling a node."""

adopted = global_var(u64, 0, name="adopted_calls")
"""How many have been. Whoever looks for nodes on all shadow stacks begins again if this has changed."""

unhooked = global_var(u64, 0, name="unhooked_calls")
"""How many calls return directly to their callers, though no node is left that shows it."""


@native(inline=True)
def top_of(task: ptr[Task]) -> ptr[Node]:
    """The newest node of any task's shadow stack."""
    return cast(ptr[Node], volatile_load(cast(ptr[u64], addressof(task.top))))


@native
def call_of(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The node of a call with this return slot and stub on a thread's shadow stack; null: there is none."""
    bottom = cast(u64, task) + NODES
    node = top_of(task)
    while cast(u64, node) > bottom:
        if node.stub == stub and slot_of(node) == frame and not is_deferred(node):
            return node
        node = below(node)
    return null


@native(inline=True)
def may_be_old(task: ptr[Task], node: ptr[Node]) -> bool_:
    """Whether another thread may be filling this node, so that what matched is what an older call has left."""
    return node == top_of(task) and volatile_load(addressof(task.rec)) != 0


@native
def settled(task: ptr[Task], frame: u64, stub: u64) -> bool_:
    """Whether another thread has made the call, once it has filled the node that it may be filling."""
    node = call_of(task, frame, stub)
    tries: u64 = 0
    while node != null and may_be_old(task, node) and tries < _YIELDS:
        syscall(SYS_SCHED_YIELD, 0, 0, 0, 0, 0, 0)
        node = call_of(task, frame, stub)
        tries += 1
    return node != null


@native
def last_maker(frame: u64, stub: u64) -> ptr[Task]:
    """The thread with the newest node of this return slot and stub; null: there is none."""
    maker: ptr[Task] = null
    made: u64 = 0
    for index in range(load(addressof(claimed_high), "acquire")):
        task = task_at(index)
        node: ptr[Node] = call_of(task, frame, stub) if load(addressof(task.state), "acquire") == CLAIMED else null
        if node != null and (maker == null or node.made > made):
            maker = task
            made = node.made
    return maker


@native
def owner_of(me: ptr[Task], frame: u64, stub: u64) -> ptr[Task]:
    """The other thread that has made the call; null: none has."""
    maker = last_maker(frame, stub)
    return maker if maker != null and maker != me and settled(maker, frame, stub) else null


@native
def is_last(task: ptr[Task], node: ptr[Node]) -> bool_:
    """Whether no other thread has made a later call with a node's return slot and stub."""
    slot = slot_of(node)
    return node.made == ON_STACK or node.made == of_slot(slot)[0] or last_maker(slot, node.stub) == task


@native
def claim(node: ptr[Node]) -> bool_:
    """Leave an empty place instead of a call. Of its thread, which ends, and the one that adopts it, only one gets True."""
    stub = volatile_load(addressof(node.stub))
    if stub <= EMPTY:
        return False
    if not is_spare(stub):
        node.record = stub - RETURN_POINT  # where `entry_ip` looks then
    return atomic_cas(addressof(node.stub), stub, EMPTY, "acq_rel")


@native
def adopt_node(me: ptr[Task], node: ptr[Node]) -> bool_:
    """Move a node with its entry data. False: the shadow stack is full, or its thread has released it."""
    probes = probes_of(node)
    stub = node.stub
    mine = node_reserve(me, probes)
    if mine == null:
        return False
    mine.parent = node.parent
    mine.armed = node.armed
    mine.record = node.record
    mine.data = node.data if probes.data_size <= INLINE_DATA else mine.data
    mine.made = node.made
    words = cast(ptr[u64], node_data(mine, probes))
    theirs = cast(ptr[u64], node_data(node, probes))
    for index in range(cast(u64, probes.data_size + 7) >> 3):
        words[index] = theirs[index]
    mine.frame = node.frame
    atomic_add(addressof(adopted), 1, "acq_rel")
    if not claim(node):
        node_release(me, mine)
        return False
    mine.stub = stub
    return True


@native
def adopt_frame(me: ptr[Task], owner: ptr[Task], frame: u64, stub: u64) -> bool_:
    """Move a frame's nodes, oldest first. False: that of `stub` was not among them."""
    top = top_of(owner)
    node = cast(ptr[Node], cast(u64, owner) + NODES)
    found = False
    while cast(u64, node) < cast(u64, top):
        node = above(node)
        theirs = node.stub
        if theirs > EMPTY and slot_of(node) == frame and adopt_node(me, node):
            found = found or theirs == stub
    return found


@native
def adopt(me: ptr[Task], frame: u64, stub: u64) -> bool_:
    """Take the call that returns into `stub` over from the thread that made it, with the others of its frame.

    As long as `adopts_from` names that thread, its record does not become another one's.
    """
    owner = owner_of(me, frame, stub)
    if owner == null:
        return False
    atomic_exchange(addressof(me.adopts_from), cast(u64, owner))
    found = adopt_frame(me, owner, frame, stub)
    store(addressof(me.adopts_from), 0, "release")
    return found


@native(noinline=True)
def return_without_record(frame: u64, stub: u64) -> u64:
    """Where a call returns to that this thread can have no node for. Its thread, if that still exists, will find it dead."""
    owner = owner_of(null, frame, stub)
    node = call_of(owner, frame, stub) if owner != null else null
    if node != null:  # if its thread has ended meanwhile, it has changed the slot
        atomic_cas(word_at(frame), stub + EXIT_FROM_STUB, real_caller(node), "acq_rel")
    parent = word_at(frame)[0]
    if parent == stub + EXIT_FROM_STUB or (node == null and load(addressof(unhooked)) == 0):
        lost_return(stub, frame)
        trap()
    return parent
