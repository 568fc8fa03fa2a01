"""Nodes of a shadow stack: what they hold, which calls of one frame belong together, which stack a return slot is on.

Coroutines and signal handlers have stacks of their own. The stack of a slot must be known only if a newer call's slot is above an
older one's: on one stack, the older call never returned. The thread's own stack is known exactly; for two slots elsewhere it is
unknown whether they share a stack.
"""

from __future__ import annotations

from ftrace.hit.parking import EMPTY, is_parked, is_spare, slot_of
from ftrace.hit.records import ARMED_IN_NODE, ProbeList
from ftrace.hit.x86_64.stubs import EXIT_POINT, RETURN_POINT
from sandbox.native import *
from sandbox.threads.tasks import NODE, Node, Task, own_stack, own_stack_size, stack_field
from sandbox.x86_64.syscalls import SYS_RT_SIGPROCMASK, SYS_SIGALTSTACK

INLINE_DATA = 64
"""Entry data of up to this many bytes is in the node itself."""
EXIT_FROM_STUB = EXIT_POINT - RETURN_POINT
"""The address in the return slot minus Node.stub."""
OUTER_AT, MOST_PLACES = 16, (1 << 15) - 1
"""In `place_at_entry`; the places are fewer (sandbox.threads.tasks)."""
TAIL_CALL, DEFERRED = 1, 4
"""Subtracted from Node.frame, as is ftrace.hit.made.OFF_STACK: the node below has the same frame; the call has returned into the
stub of an older node of its frame, and keeps its return nodes until that node's handlers have run. The fast trampolines then
handle neither its return nor a call from its frame."""


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
def is_call(node: ptr[Node], slot: u64, ip: u64) -> bool_:
    """Whether a node is that of a call of the function at `ip` with this return slot, whose handlers are running."""
    return node.stub != EMPTY and slot_of(node) == slot and entry_ip(node) == ip


@native(inline=True)
def place_of(task: ptr[Task], node: ptr[Node]) -> u64:
    """The position of a node on its shadow stack: above those of all calls around it."""
    return (cast(u64, node) - cast(u64, task.bottom)) // NODE


@native
def is_back(node: ptr[Node], slot: u64) -> bool_:
    """Whether a parked call's part of the stack is there again: its greenlet runs."""
    return readable(slot) and word_at(slot)[0] == node.stub + EXIT_FROM_STUB


@native(bounded=False)
def outer_of(task: ptr[Task], newest: ptr[Node], slot: u64) -> ptr[Node]:
    """The innermost call in progress around one with this return slot, from `newest` on; the sentinel if there is none.

    On the thread's own stack, calls elsewhere are suspended. Elsewhere it is the call with the nearest slot above, since which
    of these share a stack is not known; else the one that has resumed the coroutine.
    """
    is_own = stack_field != 0 and on_own_stack(slot)
    nearest = task.bottom
    resumes = task.bottom
    node = newest
    while node != task.bottom:
        frame = slot_of(node)
        if node.stub > EMPTY and (not is_parked(node) or is_back(node, frame)):
            if stack_field != 0 and on_own_stack(frame):
                if is_own and frame >= slot:
                    return node
                if resumes == task.bottom:
                    resumes = node
            elif not is_own and frame >= slot and (nearest == task.bottom or frame < frame_of(nearest)):
                nearest = node
        node = below(node)
    return resumes if nearest == task.bottom and not is_own else nearest


@native(bounded=False)
def place_at_entry(task: ptr[Task], slot: u64, ip: u64) -> u64:
    """The place of a call whose entry handlers are running, the next one if its return is not hooked, as place_at_return();
    from bit OUTER_AT on, the place of the call around it, 0 if there is none.
    """
    node = task.top
    place = place_of(task, node) + 1
    if is_call(node, slot, ip):
        place -= 1
        node = below(node)
    return place << 1 | place_of(task, outer_of(task, node, slot)) << OUTER_AT


@native(bounded=False)
def place_at_return(task: ptr[Task], slot: u64, ip: u64) -> u64:
    """The place of a call whose exit handlers are running, twice, plus 1 if a later call is in progress, on another stack."""
    node = task.top
    while node != task.bottom and not is_call(node, slot, ip):
        node = below(node)
    return place_of(task, node) << 1 | cast(u64, node != task.top)


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

    The fast trampolines do not keep `armed`; a node without a stub is being filled by the slow path.
    """
    if probes_of(node).count == 1 and node.stub != 0:
        return True
    return armed_word(node, cast(u64, index))[0] >> cast(u64, index & 63) & 1 != 0


@native
def real_caller(node: ptr[Node]) -> u64:
    """The real return address of a call: in a tail call's slot is the stub of the caller's own hook."""
    caller = node.parent
    older = below(node)
    while frame_of(older) == frame_of(node):
        if older.stub + EXIT_FROM_STUB == caller:
            caller = older.parent
        older = below(older)
    return caller


@native(inline=True)
def true_parent(task: ptr[Task], parent: u64) -> u64:
    """The same for a call whose entry handlers are running: it may have a node by now. `parent`: what is in its return slot."""
    node = task.top
    if likely(parent - EXIT_FROM_STUB != node.stub and node != task.bottom):
        node = below(node)
    while unlikely(parent - EXIT_FROM_STUB == node.stub):
        parent = node.parent
        node = below(node)
    return parent


@native
def outer_of_frame(node: ptr[Node]) -> ptr[Node]:
    """The older node of the same frame (a tail call's) into whose stub this one's call returns, or null."""
    older = below(node)
    while frame_of(older) == frame_of(node):
        if older.stub + EXIT_FROM_STUB == node.parent:
            return older
        older = below(older)
    return null


_EFAULT = -14
_ON_STACK = 1


@native
def readable(address: u64) -> bool_:
    """Whether the aligned word at `address` can be read: rt_sigprocmask reads the mask before it checks `how`.

    A null mask is not read: the first word of memory counts as unreadable.
    """
    return address > 7 and syscall(SYS_RT_SIGPROCMASK, -1, cast(i64, address & ~cast(u64, 7)), 0, 8, 0, 0) != _EFAULT


@native
def beyond_signal_stack(address: u64) -> bool_:
    """Whether this thread runs on an alternate signal stack and `address` is not on that."""
    stack: array[u64, 3] = zeroed  # sp, flags, size
    syscall(SYS_SIGALTSTACK, 0, cast(i64, addressof(stack[0])), 0, 0, 0, 0)
    return stack[1] & _ON_STACK != 0 and (address < stack[0] or address >= stack[0] + stack[2])


@native
def off_signal_stack(address: u64) -> bool_:
    """Whether `address` is on this thread's alternate signal stack, and the thread is not."""
    stack: array[u64, 3] = zeroed  # sp, flags, size
    syscall(SYS_SIGALTSTACK, 0, cast(i64, addressof(stack[0])), 0, 0, 0, 0)
    return stack[1] & _ON_STACK == 0 and stack[0] <= address and address < stack[0] + stack[2]


@native(inline=True)
def is_on_stack_of(task: ptr[Task], address: u64) -> bool_:
    """Whether `address` is in the memory that the task's thread was started with as its stack; anything is if that is unknown."""
    return address - task.stack < task.stack_size


@native
def on_own_stack(address: u64) -> bool_:
    """Whether `address` is in the memory that this thread was started with as its stack."""
    return address - own_stack() < own_stack_size()


@native
def on_one_stack(low: u64, high: u64) -> bool_:
    """Whether two slots, of which `high` is on the running stack, are known to be on the same one: the thread's own."""
    return stack_field != 0 and on_own_stack(low) and on_own_stack(high) and not beyond_signal_stack(low)
