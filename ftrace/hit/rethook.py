"""The shadow stack: where hooked calls return to (RH-3, RH-9..18, RB-1..7).

A node is reserved by storing the new top first and filled afterwards, so that a signal in between nests above it. Nodes
whose call will never return (longjmp) are found by their frames when the next call is hooked, and when a return does not
find its node on top. A call that returns below newer ones that are live, on another stack, leaves an empty
place, which is dropped when it comes to be on top.
"""

from __future__ import annotations

from ftrace.hit.parking import EMPTY, is_parked, is_spare, look_for_parked, park, slot_of, spare_stubs
from ftrace.hit.pools import gather_credits, pool_give
from ftrace.hit.records import ARMED_IN_NODE, CALLBACK, POOL_SHARED, SWITCHING, Item, Probe, ProbeList
from ftrace.hit.stacks import on_one_stack, readable
from ftrace.x86_64.stubs import EXIT_POINT, RETURN_POINT
from sandbox.native import (
    addressof,
    atomic_cas,
    bool_,
    cast,
    i64,
    native,
    null,
    ptr,
    signal_fence,
    syscall,
    u8,
    u32,
    u64,
    void,
    volatile_load,
)
from sandbox.threads.tasks import CLAIMED, DATA_STACK, NODE, Node, Task, claimed_high, current, task_at, task_free

_SYS_GETTID = 186

INLINE_DATA = 64
"""Entry data up to this many bytes lies in the node itself."""
EXIT_FROM_STUB = EXIT_POINT - RETURN_POINT
"""What the return slot holds, less what a node calls its stub."""
TAIL_CALL, NOT_NORMAL, DEFERRED = 1, 2, 4
"""Taken off Node.frame: the node below has the same frame; the call was not made in normal context; it has returned, into the
stub of an older node of its frame, and waits for the handlers of that before its return nodes go back. Neither its return nor
a call from its frame is for the fast trampolines then."""
FAR = 65536
"""How many bytes of stack arguments a `ret imm16` may drop."""


@native(inline=True)
def below(node: ptr[Node]) -> ptr[Node]:
    """The next older node (the sentinel at last)."""
    return cast(ptr[Node], addressof(cast(ptr[u8], node)[-NODE]))


@native(inline=True)
def above(node: ptr[Node]) -> ptr[Node]:
    return cast(ptr[Node], addressof(cast(ptr[u8], node)[NODE]))


@native(inline=True)
def frame_of(node: ptr[Node]) -> u64:
    """The address of the return slot."""
    return node.frame + 7 & ~cast(u64, 7)


@native(inline=True)
def is_deferred(node: ptr[Node]) -> bool_:
    return 0 - node.frame & DEFERRED != 0


@native(inline=True)
def word_at(address: u64) -> ptr[u64]:
    return cast(ptr[u64], address)


@native(inline=True)
def entry_ip(node: ptr[Node]) -> u64:
    """The address of the site that this call came in through: the word that its StubRecord begins with."""
    if node.stub <= EMPTY or is_spare(node.stub):
        return word_at(node.record)[0]
    return word_at(node.stub - RETURN_POINT)[0]


@native(inline=True)
def node_data(node: ptr[Node], probes: ptr[ProbeList]) -> u64:
    """Address of the entry data of a call that came in with this list."""
    if probes.data_size > INLINE_DATA:
        return node.data
    return cast(u64, addressof(node.inline_data[0]))


@native(inline=True)
def probes_of(node: ptr[Node]) -> ptr[ProbeList]:
    return cast(ptr[ProbeList], node.probes)


@native(inline=True)
def armed_word(node: ptr[Node], index: u64) -> ptr[u64]:
    """The word that has, at index % 64, the bit of the probe at `index` of the node's list."""
    probes = probes_of(node)
    if probes.count <= ARMED_IN_NODE:
        return addressof(node.armed)
    return word_at(node_data(node, probes) + cast(u64, probes.armed_at) + (index >> 6) * 8)


@native(inline=True)
def arm(node: ptr[Node], index: u64) -> void:
    """The probe at `index` of the node's list has given a return node for this call."""
    armed_word(node, index)[0] |= cast(u64, 1) << (index & 63)


@native(inline=True)
def disarm(node: ptr[Node], index: u64) -> void:
    armed_word(node, index)[0] &= ~(cast(u64, 1) << (index & 63))


@native(inline=True)
def is_armed(node: ptr[Node], index: u32) -> bool_:
    """Whether the probe at `index` of the node's list has given a return node for this call.

    The fast trampolines do not keep `armed`; a node that has no stub yet is being filled by the complete way.
    """
    if probes_of(node).count == 1 and node.stub != 0:
        return True
    return armed_word(node, cast(u64, index))[0] >> cast(u64, index & 63) & 1 != 0


@native(inline=True)
def pop(task: ptr[Task], node: ptr[Node]) -> void:
    """Take off a node that was the newest when the caller looked, and an empty place.

    A signal's handler that hooks calls in between has taken it off already, and may have used it again: then nothing is left
    to do. So it is looked at once only, its data first: if it has been used again before its list is read, with entry data
    elsewhere, those began where its own did. If the handler jumps past a call that it hooked, when this node is off, then the
    node is that call's, and the data behind `end` are: what was below them is free again when the shadow stack is empty.
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
    """Take off the empty places that are on top."""
    node = task.top
    while node != task.bottom and node.stub == EMPTY:
        pop(task, node)
        node = task.top


@native
def node_release(task: ptr[Task], node: ptr[Node]) -> void:
    """Take a node off. One that is not the newest (another stack's calls are above it) stays as an empty place."""
    node.stub = EMPTY
    node.frame = 0xFFFF_FFFF_FFFF_FFFF
    signal_fence()
    pop_empty(task)
    if task.limit == 0:
        look_for_parked(task)


@native
def give_back(task: ptr[Task], node: ptr[Node], item: ptr[Item]) -> void:
    """What an armed probe has taken for a call, when its handlers have run or never will.

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
    """Take a node off and give its return nodes back."""
    probes = probes_of(node)
    for index in range(probes.count):
        if is_armed(node, index):
            give_back(task, node, addressof(probes.items[index]))
    node_release(task, node)


@native
def node_abandon(task: ptr[Task], node: ptr[Node]) -> void:
    """The same for one whose call never returned (RH-24, RH-26)."""
    if not is_deferred(node):
        task.abandoned += 1
    node_recycle(task, node)


@native
def drop_above(task: ptr[Task], frame: u64) -> void:
    """Take off what is newer than the call whose return slot is at `frame`, and cannot return any more."""
    pop_empty(task)
    while task.top != task.bottom and frame_of(task.top) != frame:
        node_abandon(task, task.top)


@native
def node_leave(task: ptr[Task], node: ptr[Node]) -> void:
    """A fast call returns, and newer nodes are on top: the handler of a signal hooked calls and jumped past them."""
    drop_above(task, frame_of(node))
    node_release(task, node)


@native
def is_dead(node: ptr[Node], frame: u64) -> bool_:
    """Whether a node's call cannot return any more, seen from a call whose return slot is at `frame` (HAZARDS: liveness)."""
    own = frame_of(node)
    if own > frame:
        return False
    if own == frame:
        return word_at(frame)[0] != node.stub + EXIT_FROM_STUB
    return on_one_stack(own, frame) or not readable(own) or word_at(own)[0] != node.stub + EXIT_FROM_STUB


@native
def drop_dead(task: ptr[Task], frame: u64) -> void:
    """For a hit that is in no other one: nothing is being reserved or released now."""
    if spare_stubs != 0:
        park_dead(task, frame)
        return
    while task.top != task.bottom and is_dead(task.top, frame):
        node_abandon(task, task.top)
    if task.top == task.bottom:
        task.data_top = cast(u64, addressof(cast(ptr[u8], task)[DATA_STACK]))


@native
def park_dead(task: ptr[Task], frame: u64) -> void:
    """Likewise, where what looks dead may be on a stack that is put aside. Below a live node there are live and parked ones."""
    pop_empty(task)
    node = task.top
    while node != task.bottom:
        if node.stub > EMPTY and not is_parked(node):
            if not is_dead(node, frame):
                return
            park(task, node)
        node = below(node)


@native
def real_caller(node: ptr[Node]) -> u64:
    """Where a call really returns to: a tail call finds the stub of the caller's own hook in its slot (FP-5)."""
    caller = node.parent
    older = below(node)
    while frame_of(older) == frame_of(node):
        if older.stub + EXIT_FROM_STUB == caller:
            caller = older.parent
        older = below(older)
    return caller


@native
def outer_of_frame(node: ptr[Node]) -> ptr[Node]:
    """The older node of the same frame (a tail call's) into whose stub this one's call returns, or null."""
    older = below(node)
    while frame_of(older) == frame_of(node):
        if older.stub + EXIT_FROM_STUB == node.parent:
            return older
        older = below(older)
    return null


@native
def newest_call(task: ptr[Task]) -> ptr[Node]:
    """The newest node that is not deferred, if those on top are of one frame; `defer` keeps where it is."""
    node = task.top
    return cast(ptr[Node], node.reserved) if is_deferred(node) else node


@native
def defer(task: ptr[Task], node: ptr[Node]) -> void:
    """A call's handlers have run, and those of an older node of its frame come next: its return nodes go back with that."""
    node.reserved = cast(u64, below(node))
    if node == newest_call(task):
        task.top.reserved = node.reserved
    signal_fence()
    node.frame -= DEFERRED


@native
def node_return(task: ptr[Task], node: ptr[Node]) -> void:
    """The handlers of a call have run. The nodes of its frame are given back together, after the last of them (RH-11)."""
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
def room_for_data(task: ptr[Task], node: ptr[Node], size: u32) -> u64:
    """Where the entry data of a new node are to be, or 0 if there is no room."""
    if size <= INLINE_DATA:
        return cast(u64, addressof(node.inline_data[0]))
    return task.data_top if task.data_top + cast(u64, size) <= task.data_limit else 0


@native
def node_reserve(task: ptr[Task], probes: ptr[ProbeList]) -> ptr[Node]:
    """A node with room for the list's entry data, zeroed, or null if the shadow stack is full."""
    size = probes.data_size
    node: ptr[Node] = null
    data: u64 = 0
    reserved = False
    while not reserved:  # the handler of a signal may leave a call in that place that it has jumped past
        top = task.top
        node = above(top)
        data = room_for_data(task, node, size)
        if cast(u64, node) > task.nodes_end or data == 0:
            return null
        if size > INLINE_DATA:
            task.data_top = data + (cast(u64, size) + 15 & ~15)
        signal_fence()
        reserved = atomic_cas(cast(ptr[u64], addressof(task.top)), cast(u64, top), cast(u64, node), "relaxed")
    signal_fence()
    node.stub = 0
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
    if task.context != 0:
        marks += NOT_NORMAL
    node.frame = frame - marks


@native
def matching_node(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The newest node of this stub at exactly this frame, else (`ret imm16`) at one a little below it, else null."""
    node = task.top
    while node != task.bottom:
        if node.stub == stub and slot_of(node) == frame and not is_deferred(node):
            return node
        node = below(node)
    node = task.top
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
        is_waiting = is_deferred(node) and slot_of(node) == slot_of(found)
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
    """The node of the running thread whose return slot is at `frame` and which knows where that really returns to (RH-18).

    `cur`: the node that the last call found, below which the search goes on; 0 to begin. 0: there is none.
    """
    task = current()
    if task == null:
        return 0
    node = below(cast(ptr[Node], cur)) if cur != 0 else task.top
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
    """In the child of a fork, when the other threads' nodes have gone: the pool has what this thread does not hold.

    What threads that are not there any more had in hand is found again, and a switch that they had begun is finished.
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
def rethook_flush_task(task: ptr[Task]) -> void:
    """A thread is about to end: its nodes go back without handlers (RH-24). The destructor of the tasks' key."""
    pop_empty(task)
    while task.top != task.bottom:
        node_abandon(task, task.top)
    task_free(task)


@native
def tasks_after_fork() -> u64:
    """In the child of a fork: the calling thread has a new tid, and the others are not there any more. Its tid before, or 0.

    A node of theirs may be half filled. What they held is found by whoever counts it (`pool_after_fork`).
    """
    me = current()
    before: u64 = 0
    for index in range(claimed_high):
        task = task_at(index)
        if task == me:
            before = cast(u64, task.tid)
            task.tid = cast(u32, syscall(_SYS_GETTID, 0, 0, 0, 0, 0, 0))
        elif task.state == CLAIMED:
            task_free(task)
    return before
