"""The shadow stack: where hooked calls return to (RH-3, RH-9..18, RB-1..7).

A node is reserved by storing the new top first and filled afterwards, so that a signal in between nests above it. Nodes
whose call will never return (longjmp) are found by their frames when the next call is hooked, and when a return does not
find its node on top.
"""

from __future__ import annotations

from ftrace.pools import pool_give
from ftrace.records import Probe, ProbeList
from sandbox.native import (
    addressof, bool_, cast, native, null, ptr, signal_fence, u8, u32, u64, void, volatile_store,
)  # fmt: skip
from sandbox.tasks import NODE, Node, Task, task_free

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
def word_at(address: u64) -> ptr[u64]:
    return cast(ptr[u64], address)


@native(inline=True)
def probes_of(node: ptr[Node]) -> ptr[ProbeList]:
    return cast(ptr[ProbeList], node.probes)


@native
def node_release(task: ptr[Task], node: ptr[Node]) -> void:
    """Pop `node`, which is the newest."""
    if node.data != 0 and node.data != cast(u64, addressof(node.inline_data[0])):
        task.data_top = node.data
    signal_fence()
    task.top = below(node)


@native(bounded=False)
def node_abandon(task: ptr[Task], node: ptr[Node]) -> void:
    """Pop the newest node, whose call never returned, and give its return nodes back (RH-24, RH-26)."""
    probes = probes_of(node)
    for index in range(probes.count):
        if node.armed >> cast(u64, index) & 1 != 0:
            pool_give(task, probes.items[index].probe)
    node.armed = 0
    task.abandoned += 1
    node_release(task, node)


@native(inline=True)
def is_dead(node: ptr[Node], frame: u64) -> bool_:
    """Whether the newest node's call cannot return any more, seen from a call whose return slot is at `frame`."""
    if node.frame < frame:
        return True
    return node.frame == frame and word_at(frame)[0] != node.stub


@native(bounded=False)
def drop_dead(task: ptr[Task], frame: u64) -> void:
    while task.top != task.bottom and is_dead(task.top, frame):
        node_abandon(task, task.top)


@native(bounded=False)
def real_caller(task: ptr[Task], frame: u64, parent: u64) -> u64:
    """The return address behind stubs: a tail call finds the stub of the caller's own hook in its slot (FP-5)."""
    node = task.top
    caller = parent
    while node != task.bottom and node.frame <= frame:
        if node.frame == frame and node.stub == caller:
            caller = node.parent
        node = below(node)
    return caller


@native(bounded=False)
def node_reserve(task: ptr[Task], size: u32) -> ptr[Node]:
    """A node with room for `size` bytes of zeroed entry data, or null if the shadow stack is full."""
    node = above(task.top)
    if cast(u64, node) > task.limit:
        return null
    data = cast(u64, addressof(node.inline_data[0]))
    if size > 64:
        data = task.data_top
        if data + cast(u64, size) > task.data_limit:
            return null
    task.top = node
    signal_fence()
    if size > 64:
        task.data_top = data + (cast(u64, size) + 15 & ~15)
    node.data = data
    node.armed = 0
    words = cast(ptr[u64], data)
    for index in range(cast(u64, size + 7) >> 3):
        words[index] = 0
    return node


@native
def node_fill(node: ptr[Node], probes: ptr[ProbeList], frame: u64, parent: u64, caller: u64, stub: u64) -> void:
    node.parent = parent
    node.frame = frame
    node.stub = stub
    node.probes = cast(u64, probes)
    node.caller = caller


@native(bounded=False)
def matching_node(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The newest node of this stub at exactly this frame, else (`ret imm16`) at one a little below it, else null."""
    node = task.top
    while node != task.bottom:
        if node.frame == frame and node.stub == stub:
            return node
        node = below(node)
    node = task.top
    while node != task.bottom:
        if node.stub == stub and node.frame < frame and frame - node.frame < FAR:
            return node
        node = below(node)
    return null


@native(bounded=False)
def find_return(task: ptr[Task], frame: u64, stub: u64) -> ptr[Node]:
    """The node of a return that arrives in `stub`; newer ones are abandoned. Null: the return address is lost."""
    node = matching_node(task, frame, stub)
    if node == null:
        return null
    while task.top != node:
        node_abandon(task, task.top)
    return node


@native(bounded=False)
def rethook_flush_task(task: ptr[Task]) -> void:
    """A thread is about to end: its nodes go back without handlers (RH-24). The destructor of the tasks' key."""
    while task.top != task.bottom:
        node_abandon(task, task.top)
    task_free(task)
