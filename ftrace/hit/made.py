"""When calls were made whose return slots are not on their thread's own stack, but on a coroutine's.

Another thread may end such a call by an exception, and its node stays. Then another call of the function may have the same slot
and stub, made by whichever thread: its node is the one that was made last. So these nodes have the time, and a table has the time
of the last one for each slot, or of another slot with the same hash.
"""

from __future__ import annotations

from ftrace.hit.hashing import first_place
from ftrace.hit.nodes import is_on_stack_of
from sandbox.native import *
from sandbox.threads.tasks import Node, Task

OFF_STACK = 2
"""Subtracted from Node.frame: the slow path handles the return, because the call was not made in normal context, or its slot is
not on the thread's own stack."""
ON_STACK = (1 << 64) - 1
"""Node.made of a call on the thread's own stack: later than any time, since what other threads have had there was before it.

What a released node leaves keeps its time: to those who look at a node that is being filled, it is no newer call."""
_BITS = 12
"""Of the hash. The table is written when the runtime starts, so it is 32 KB."""

last_made = global_var(array[u64, 1 << _BITS], name="last_made")


@native(inline=True)
def of_slot(slot: u64) -> ptr[u64]:
    """When the last call with this return slot was made, or one with a slot of the same hash."""
    return addressof(last_made[first_place(slot, 64 - _BITS)])


@native
def note_made(task: ptr[Task], node: ptr[Node], slot: u64) -> bool_:
    """Note when a node is made. Whether its return slot is not on the thread's own stack."""
    node.made = ON_STACK
    if is_on_stack_of(task, slot):
        return False
    node.made = rdtsc()
    of_slot(slot)[0] = node.made
    return True


@native
def was_made_last(node: ptr[Node]) -> bool_:
    """Whether a node that has the mark OFF_STACK and no other is surely of the last call with its slot."""
    return node.made == of_slot(node.frame + OFF_STACK)[0]
