"""Hooked calls of suspended greenlets: greenlets share one piece of stack and copy their part of it to the heap and back.

On other stacks, a node whose return slot has been overwritten is dead. With greenlets it is *parked*: it keeps its place on the
shadow stack, and is found again by its frame and its stub when its call returns. Until then another greenlet may call the same
function at the same stack address. The return slot of that call gets the address of a *spare* stub, so that no two calls have
the same frame and the same stub. The slot's contents are copied to the heap and back with the rest of the stack.
"""

from __future__ import annotations

from ftrace.hit.x86_64.stubs import STUB_SIZE
from sandbox.native import *
from sandbox.threads.tasks import NODE, Node, Task

PARKED = 1 << 63
"""In Node.frame."""
EMPTY = 1
"""Node.stub of a place on the shadow stack that is no call any more. Above the top there is none: one that has just been
reserved must not look so."""

SPARES = 64
spare_stubs = global_var(u64, 0, name="spare_stubs")
"""The return point of the first spare stub; 0 if no stack of this process is ever put aside."""


@native(inline=True)
def is_spare(stub: u64) -> bool_:
    return spare_stubs != 0 and stub - spare_stubs < SPARES * STUB_SIZE


@native(inline=True)
def is_parked(node: ptr[Node]) -> bool_:
    return node.stub > EMPTY and node.frame & PARKED != 0


@native(inline=True)
def slot_of(node: ptr[Node]) -> u64:
    """The address of the return slot, also of a node that is parked."""
    return (node.frame & ~cast(u64, PARKED)) + 7 & ~cast(u64, 7)


@native
def park(task: ptr[Task], node: ptr[Node]) -> void:
    node.frame |= PARKED
    task.limit = 0


@native
def look_for_parked(task: ptr[Task]) -> void:
    """A node has been released: if none is parked any more, the fast trampolines may make nodes again."""
    node = task.top
    while node != task.bottom:
        if is_parked(node):
            return
        node = cast(ptr[Node], addressof(cast(ptr[u8], node)[-NODE]))
    task.limit = task.nodes_end


@native
def is_taken(task: ptr[Task], frame: u64, stub: u64) -> bool_:
    """Whether a parked call returns into `stub` from the slot at `frame`."""
    node = task.top
    while node != task.bottom:
        if is_parked(node) and node.stub == stub and slot_of(node) == frame:
            return True
        node = cast(ptr[Node], addressof(cast(ptr[u8], node)[-NODE]))
    return False


@native
def return_point_for(task: ptr[Task], frame: u64, stub: u64) -> u64:
    """The stub to which a call through `stub` returns: one that no parked call in the same slot uses. 0: none is free."""
    if spare_stubs == 0 or task.limit != 0 or not is_taken(task, frame, stub):
        return stub
    for index in range(SPARES):
        spare = spare_stubs + cast(u64, index) * STUB_SIZE
        if not is_taken(task, frame, spare):
            return spare
    return 0
