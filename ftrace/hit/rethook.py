"""The shadow stack: taking nodes for calls, finding them when calls return, and dropping those that never will.

A node is reserved by storing the new top first, and filled afterwards, so that a signal in between nests above it. A call
that never returns (longjmp) is recognised by its frame, when the next call is hooked or when a return does not find its node
on top. A call that returns below newer live ones, on another stack, leaves an empty node, which is dropped once it is on top.

Nodes are released when their thread ends, and in the child of a fork (ftrace.hit.ended_threads).

What always holds, whatever interrupts:

- Only the thread itself takes and drops nodes, so nobody waits. A signal's handler on the same thread nests: when it has
  returned, `top` is as it was, unless it has jumped away (siglongjmp). So whoever has read `top` exchanges it, and begins
  again if that fails.
- Nodes from `bottom` to `top` are in the order of the calls. That is the order of their frames only on one stack.
- The return slot of a call that can return holds its stub's exit point. EMPTY in `stub` is a node that has been released below
  newer ones. A node that is being filled holds what an older call has left: dead nodes are looked for at outermost hits only.
- The list of probes that a node refers to is not freed before the node is released.
"""

from __future__ import annotations

from ftrace.hit.made import OFF_STACK, note_made
from ftrace.hit.nodes import (
    DEFERRED,
    EXIT_FROM_STUB,
    INLINE_DATA,
    TAIL_CALL,
    above,
    below,
    entry_ip,
    frame_of,
    is_armed,
    is_deferred,
    node_data,
    on_one_stack,
    outer_of_frame,
    probes_of,
    readable,
    real_caller,
    word_at,
)
from ftrace.hit.parking import EMPTY, is_parked, look_for_parked, park, slot_of, spare_stubs
from ftrace.hit.pools import gather_credits, nodes_of, pool_give
from ftrace.hit.records import CALLBACK, POOL_SHARED, SWITCHING, Item, Probe, ProbeList
from sandbox.native import *
from sandbox.threads.tasks import DATA_STACK, Node, Task, counters, current

FAR = 65536
"""How many bytes of stack arguments a `ret imm16` may drop."""


@native(inline=True)
def pop(task: ptr[Task], node: ptr[Node]) -> void:
    """Pop an empty node that was the newest when the caller read `top`.

    A signal handler that hooked calls in between has popped it already, and may have reused it: then there is nothing to do. So
    the node is read only once, its data first: if it was reused before its list is read, with entry data outside of the node,
    that data began at the same address. If the handler jumps past a call that it hooked, after this node was popped, the node
    and the data after `end` belong to that call: the data below is free again once the shadow stack is empty.
    """
    end = volatile_load(addressof(task.data_top))
    data = volatile_load(addressof(node.data))
    signal_fence()
    is_elsewhere = probes_of(node).data_size > INLINE_DATA
    signal_fence()
    if atomic_cas(cast(ptr[u64], addressof(task.top)), cast(u64, node), cast(u64, below(node)), "acq_rel"):
        if is_elsewhere:
            atomic_cas(addressof(task.data_top), end, data, "relaxed")
        atomic_cas(addressof(node.stub), EMPTY, 0, "relaxed")


@native
def pop_empty(task: ptr[Task]) -> void:
    """Pop the empty nodes on top."""
    node = task.top
    while node != task.bottom and node.stub == EMPTY:
        pop(task, node)
        node = task.top


@native
def node_release(task: ptr[Task], node: ptr[Node]) -> void:
    """Release a node. If it is not the newest (calls on another stack are above it), it stays as an empty node.

    One that is on top once a fast call has returned looks dead to the fast trampolines: the next hit drops it on the slow path.
    """
    node.stub = EMPTY
    node.frame = 0
    signal_fence()
    pop_empty(task)
    if task.limit == 0:
        look_for_parked(task)


@native
def give_back(task: ptr[Task], node: ptr[Node], item: ptr[Item]) -> void:
    """Release what an armed probe has taken for a call, after its handlers have run or when they never will.

    A callback gets the task in place of the caller: it is not `current()` once the thread is about to end, nor after a fork.
    """
    probe = item.probe
    if probe.kind & CALLBACK != 0:
        data = node_data(node, probes_of(node)) + cast(u64, item.data)
        probe.exit(probe.exit_cookie, entry_ip(node), cast(u64, task), 0, data)
    else:
        pool_give(task, probe)


@native
def node_recycle(task: ptr[Task], node: ptr[Node]) -> void:
    """Release a node and its return nodes."""
    probes = probes_of(node)
    for index in range(probes.count):
        if is_armed(node, index):
            give_back(task, node, addressof(probes.items[index]))
    node_release(task, node)


@native
def node_abandon(task: ptr[Task], node: ptr[Node]) -> void:
    """The same for a node whose call never returned."""
    if not is_deferred(node):
        task.abandoned += 1
    node_recycle(task, node)


@native
def drop_above(task: ptr[Task], frame: u64) -> void:
    """Drop the nodes newer than the call whose return slot is at `frame`: their calls cannot return any more."""
    pop_empty(task)
    while task.top != task.bottom and frame_of(task.top) != frame:
        node_abandon(task, task.top)


@native
def node_leave(task: ptr[Task], node: ptr[Node]) -> void:
    """A fast call returns while newer nodes are on top: a signal handler hooked calls and jumped past them."""
    drop_above(task, frame_of(node))
    node_release(task, node)


@native
def is_dead(node: ptr[Node], frame: u64) -> bool_:
    """Whether a node's call cannot return any more, seen from a call whose return slot is at `frame`."""
    own = frame_of(node)
    # Stacks grow downwards: a call whose slot is higher is further out, and still in progress.
    if own > frame:
        return False
    if own == frame:  # a call in place of it, such as a tail call, has the same slot; then its own return is to come
        return word_at(frame)[0] != node.stub + EXIT_FROM_STUB
    # Below the caller's frame nothing lives on its stack. On another stack only the slot itself can tell, if it is mapped still.
    return on_one_stack(own, frame) or not readable(own) or word_at(own)[0] != node.stub + EXIT_FROM_STUB


@native
def drop_dead(task: ptr[Task], frame: u64) -> void:
    """Drop the nodes of dead calls. For outermost hits: no node is being reserved or released then."""
    if spare_stubs != 0:
        park_dead(task, frame)
        return
    pop_empty(task)
    while task.top != task.bottom and is_dead(task.top, frame):
        node_abandon(task, task.top)
    if task.top == task.bottom:
        task.data_top = cast(u64, addressof(cast(ptr[u8], task)[DATA_STACK]))  # with what `pop` could not give back


@native
def park_dead(task: ptr[Task], frame: u64) -> void:
    """The same with greenlets, where such a call may be suspended: park it. Nodes below a live one are live or parked."""
    pop_empty(task)
    node = task.top
    while node != task.bottom:
        if node.stub > EMPTY and not is_parked(node):
            if not is_dead(node, frame):
                return
            park(task, node)
        node = below(node)


@native
def newest_call(task: ptr[Task]) -> ptr[Node]:
    """The newest node that is not deferred, if those on top are of one frame; `defer` keeps where it is."""
    node = task.top
    return cast(ptr[Node], node.made) if is_deferred(node) else node


@native
def defer(task: ptr[Task], node: ptr[Node]) -> void:
    """A call's handlers have run; those of an older node of its frame run next: release its return nodes with that node.

    When it was made does not matter any more.
    """
    node.made = cast(u64, below(node))
    if node == newest_call(task):
        task.top.made = node.made  # where `newest_call` begins
    signal_fence()  # the mark last: a deferred node without a successor would be read as one
    node.frame -= DEFERRED


@native
def node_return(task: ptr[Task], node: ptr[Node]) -> void:
    """The handlers of a call have run. The nodes of its frame are released together, after the last of them."""
    if outer_of_frame(node) != null:
        defer(task, node)
        return
    newer = task.top
    while newer != node:
        following = below(newer)
        if is_deferred(newer) and frame_of(newer) == frame_of(node):
            node_recycle(task, newer)
        newer = following
    node_recycle(task, node)


@native
def allocate_data(task: ptr[Task], node: ptr[Node], size: u32) -> u64:
    """The address for the entry data of a new node, or 0 if there is no space."""
    if size <= INLINE_DATA:
        return cast(u64, addressof(node.inline_data[0]))
    return task.data_top if task.data_top + cast(u64, size) <= task.data_limit else 0


@native
def node_reserve(task: ptr[Task], probes: ptr[ProbeList]) -> ptr[Node]:
    """A node with zeroed entry data for the list, or null if the shadow stack is full."""
    size = probes.data_size
    node: ptr[Node] = null
    data: u64 = 0
    reserved = False
    while not reserved:  # a signal handler may leave there a call that it has jumped past
        top = task.top
        node = above(top)
        data = allocate_data(task, node, size)
        if cast(u64, node) > task.nodes_end or data == 0:
            return null
        if size > INLINE_DATA:
            task.data_top = data + (cast(u64, size) + 15 & ~15)
        signal_fence()  # the data before the node: a handler that nests takes data above it
        reserved = atomic_cas(cast(ptr[u64], addressof(task.top)), cast(u64, top), cast(u64, node), "relaxed")
    signal_fence()
    node.stub = 0  # what lies here is of an older call: until it is filled, it is no call to those that walk the stack
    node.armed = 0
    node.probes = cast(u64, probes)
    node.data = data
    words = cast(ptr[u64], data)
    for index in range(cast(u64, size + 7) >> 3):
        words[index] = 0
    return node


@native
def node_fill(task: ptr[Task], node: ptr[Node], frame: u64, parent: u64, stub: u64) -> void:
    node.parent = parent
    node.stub = stub
    marks: u64 = TAIL_CALL if frame_of(below(node)) == frame else 0
    if note_made(task, node, frame) or task.context != 0:
        marks += OFF_STACK
    node.frame = frame - marks


@native
def matching_node(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The newest node of this stub at exactly this frame, else (`ret imm16`) at one a little below it, else null."""
    node = task.top
    while node != task.bottom:
        if node.stub == stub and slot_of(node) == frame and not is_deferred(node):
            return node
        node = below(node)
    node = task.top  # again from the top: an exact frame further down comes before a near one above it
    while node != task.bottom:
        is_near = slot_of(node) < frame and frame - slot_of(node) < FAR
        if node.stub == stub and is_near and not is_deferred(node):
            return node
        node = below(node)
    return null


@native
def find_return(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The node of a return that arrives in `stub`; newer ones that cannot return any more are abandoned.

    Null: the return address is lost.
    """
    found = matching_node(task, frame, stub)
    if found == null:
        return null
    node = task.top
    while node != found:
        is_waiting = is_deferred(node) and slot_of(node) == slot_of(found)  # of the same call: released with it
        # Abandoning one pops the empty ones below it, so this one may be above the top already.
        is_call = cast(u64, node) <= cast(u64, task.top) and node.stub > EMPTY and not is_parked(node)
        if is_call and not is_waiting and is_dead(node, frame):
            if spare_stubs != 0 and not is_deferred(node):
                park(task, node)
            else:
                node_abandon(task, node)  # and with it the empty places below
        node = below(node)
    return found


@native
def rethook_find_ret_addr(frame: u64, cur: u64) -> u64:
    """The node of the running thread whose return slot is at `frame` and that has the real return address.

    `cur`: the result of the previous call, below which the search continues; 0 to begin. 0: there is none, or `cur` is no node
    of the shadow stack.
    """
    task = current()
    if task == null:
        return 0
    node = task.top
    if cur != 0:
        while node != task.bottom and cast(u64, node) != cur:
            node = below(node)
        if node == task.bottom:
            return 0
        node = below(node)
    while node != task.bottom:
        if (
            node.stub > EMPTY
            and slot_of(node) == frame
            and (not is_parked(node) or word_at(frame)[0] == node.stub + EXIT_FROM_STUB)
            and (node.frame & TAIL_CALL == 0 or real_caller(node) == node.parent)
        ):
            return cast(u64, node)
        node = below(node)
    return 0


@native
def pool_after_fork(probe: ptr[Probe]) -> void:
    """In the child of a fork: all nodes of the pool are free except those that this thread holds.

    Nodes that threads of the parent had taken are free again, and a switch that they had begun is completed.
    """
    if probe.nr_nodes == 0:
        return
    free = cast(i64, probe.nr_nodes)
    me = current()
    gather_credits(probe)  # of all threads, most of which are not in the child
    if me != null:
        held = nodes_of(me, cast(u64, probe))
        free -= held
        counters(me, probe.counters).granted = held
    if probe.flags & SWITCHING != 0:
        probe.pool_shared = free
        probe.flags |= POOL_SHARED
    else:
        probe.pool_unclaimed = free
