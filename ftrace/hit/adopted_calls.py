"""Hooked calls that return in another thread than they began in, as those of coroutines that any thread may resume.

The thread in which such a call returns adopts it: the nodes of its frame are copied onto its shadow stack, and the places that
they leave behind are empty, which their owner pops later. What holds meanwhile:

- The owner changes a node that is on no stack of its own only if the slot no longer has the stub, and when the owner ends. Then
  the slot gets the address that the call returns to, before the node is released.
- If the owner ends meanwhile, `claim` decides who releases the node, so that what its probes gave is given back once.
- Above all nodes of a thread that is in no hit there is none that is being filled.
"""

from __future__ import annotations

from ftrace.hit.nodes import EXIT_FROM_STUB, above, below, node_data, probes_of, real_caller, word_at
from ftrace.hit.parking import EMPTY, slot_of
from ftrace.hit.rethook import claim, node_release, node_reserve, unhooked
from sandbox.native import *
from sandbox.threads.tasks import CLAIMED, NODES, Node, Task, claimed_high, task_at
from sandbox.x86_64.syscalls import SYS_SCHED_YIELD

lost_return = extern("ftrace_lost_return", fn[void, u64, u64])

_YIELDS = 100
"""How often another thread is let run that may be filling a node."""

adopted = global_var(u64, 0, name="adopted_calls")
"""How many have been. Whoever looks for nodes on all shadow stacks begins again if this has changed."""


@native(inline=True)
def top_of(task: ptr[Task]) -> ptr[Node]:
    """The newest node of any task's shadow stack."""
    return cast(ptr[Node], volatile_load(cast(ptr[u64], addressof(task.top))))


@native
def call_of(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The node of a call with this return slot and stub on another thread's shadow stack; null: there is none."""
    bottom = cast(u64, task) + NODES
    node = top_of(task)
    while cast(u64, node) > bottom:
        if node.stub == stub and slot_of(node) == frame:
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
def owner_of(me: ptr[Task], frame: u64, stub: u64) -> ptr[Task]:
    """The thread that has made the call; null: none has."""
    doubtful: ptr[Task] = null
    for index in range(load(addressof(claimed_high), "acquire")):
        task = task_at(index)
        if task != me and load(addressof(task.state), "acquire") == CLAIMED:
            node = call_of(task, frame, stub)
            if node != null and not may_be_old(task, node):
                return task
            if node != null:
                doubtful = task
    return doubtful if doubtful != null and settled(doubtful, frame, stub) else null


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
