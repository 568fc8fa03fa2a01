"""Hits that never end: a signal's handler has interrupted one, or runs inside its handler, and leaves it by siglongjmp.

Such a hit leaves its task marked. A later hit finds the mark, as does one inside a hit in progress. So each outermost hit notes
where its stack begins, and what proves that it is intact: a hit that is in progress is above any that is inside it.

Only if it has been interrupted before that (`rec` is FAST, and no list is known) is the place unknown. Then the frame of the
signal shows whether it is still in progress: the task's address is in a register.
"""

from __future__ import annotations

from ftrace.hit.cancellation import handlers_left
from ftrace.hit.nodes import (
    EXIT_FROM_STUB,
    frame_of,
    is_on_stack_of,
    off_signal_stack,
    on_one_stack,
    on_own_stack,
    readable,
    word_at,
)
from ftrace.hit.parking import EMPTY, spare_stubs
from ftrace.hit.python_left import python_handlers_left
from ftrace.hit.records import SHARED_BUSY
from ftrace.hit.recursion import CREDIT, FAST, INSIDE, PAUSED
from sandbox.native import *
from sandbox.threads.blocked_sp import ENDED, blocked_sp
from sandbox.threads.tasks import NODE, Node, Task, stack_field

AT_RETURN, ITSELF = 1, 2
"""Low bits of Task.hit_sp: what is there while the hit lasts. AT_RETURN: the return slot of a call whose node is on the shadow
stack. ITSELF: its own address. 0: the return into the stub, after the call of the trampoline."""
_LOW_BITS = 7

_CALL = 0x12FF41
"""The instruction before the return into a stub or detour: call *(%r10)."""


@native(inline=True)
def begin_hit(task: ptr[Task], outer: u32, here: ptr[u64]) -> void:
    """A hit on the slow path begins, inside another one if `outer`, which `rec` was, is not 0.

    `here`: a word of the stack that nobody else changes while it lasts. Marked as one on the fast path until that is noted: a
    hit in a signal's handler between the two would note its own place, and be taken for this one later.
    """
    if outer == 0:
        task.rec = FAST
        signal_fence()
        here[0] = cast(u64, here)
        task.hit_sp = cast(u64, here) | ITSELF
        signal_fence()
    task.rec = outer & ~cast(u32, CREDIT) | INSIDE
    signal_fence()


_PAGE = 4096
known_call = global_var(u64, 0, name="known_call_of_stub")
"""The address after one, which was found last."""


@native
def is_call_of_stub(end: u64) -> bool_:
    """Whether the instruction before `end` is that of a stub or detour which calls the trampoline."""
    if end == volatile_load(addressof(known_call)):
        return True
    if end < _PAGE or not readable(end - 3) or not readable(end - 1):
        return False
    code = cast(ptr[u8], end - 3)
    if cast(u64, code[0]) | cast(u64, code[1]) << 8 | cast(u64, code[2]) << 16 != _CALL:
        return False
    store(addressof(known_call), end, "relaxed")
    return True


@native
def is_returning(task: ptr[Task], slot: u64) -> bool_:
    """Whether the shadow stack has a call whose return slot this is, and whose handlers may be running."""
    node = task.top
    while node != task.bottom:
        if node.stub > EMPTY and frame_of(node) == slot:
            value = word_at(slot)[0]
            return value == node.parent or value == node.stub + EXIT_FROM_STUB
        node = cast(ptr[Node], addressof(cast(ptr[u8], node)[-NODE]))
    return False


@native
def is_intact(task: ptr[Task], at: u64) -> bool_:
    """Whether the stack at `at`, where the hit noted that it begins, still has what it put there."""
    if not on_own_stack(at) and not readable(at):
        return False
    if task.hit_sp & ITSELF != 0:
        return word_at(at)[0] == at
    return is_returning(task, at) if task.hit_sp & AT_RETURN != 0 else is_call_of_stub(word_at(at)[0])


_SEGMENTS = 0x002B_0000_0000_0033
"""cs, gs, fs and ss in a signal's frame, as one word."""
_GENERAL, _SP, _BEFORE = 16, 15, 18
"""Words of a signal's frame: the general registers, which of them is the stack pointer, and how far they are before cs."""
_FAR = 65536


@native
def signal_frame(start: u64) -> u64:
    """The address of the registers in the first frame of a signal from `start` on, not far up; 0: there is none."""
    address = start + 7 & ~7
    end = start + _FAR
    readable_end: u64 = 0
    while address < end:
        if address >= readable_end:
            if not on_own_stack(address) and not readable(address):
                return 0
            readable_end = (address | _PAGE - 1) + 1
        if volatile_load(word_at(address)) == _SEGMENTS:
            return address - _BEFORE * 8
        address += 8
    return 0


@native(noinline=True)
def is_beginning(task: ptr[Task], sp: u64) -> bool_:
    """Whether a signal that has led to a hit at `sp` interrupted the first instructions of another."""
    registers = signal_frame(sp)
    for _ in range(8):
        if registers == 0:
            return False
        for index in range(_GENERAL):
            if word_at(registers)[index] == cast(u64, task):
                return True
        registers = signal_frame(word_at(registers)[_SP])
    return False


@native
def is_left_hit(task: ptr[Task], sp: u64) -> bool_:
    """Whether the hit that has marked the task has been left, given another one whose return slot is at `sp`."""
    if task.rec & PAUSED == PAUSED:
        return False
    if task.rec == FAST and task.list == 0:
        return not is_beginning(task, sp)
    here: array[u64, 1] = zeroed
    at = task.hit_sp & ~cast(u64, _LOW_BITS)
    if spare_stubs != 0 and task.hit_sp & ITSELF != 0:  # a handler may have switched to another greenlet
        return False
    if at <= sp and (cast(u64, addressof(here[0])) <= at or on_one_stack(at, sp)):
        return True
    return (not on_own_stack(at) and off_signal_stack(at)) or not is_intact(task, at)


@native(noinline=True)
def is_left_by_other(task: ptr[Task]) -> bool_:
    """Whether another thread, which is blocked in a system call or has ended, has left the hit that has marked its task.

    A thread ends inside a hit by the system call exit in a C handler, or by a seccomp filter that kills only threads.
    """
    noted = volatile_load(addressof(task.hit_sp))
    tid = cast(u64, volatile_load(addressof(task.tid)))
    sp = blocked_sp(tid) if tid != 0 else cast(u64, 0)
    if sp == ENDED:
        return True
    if (
        sp == 0
        or stack_field == 0
        or not is_on_stack_of(task, sp)
        or volatile_load(addressof(task.rec)) & PAUSED == PAUSED
    ):
        return False
    if volatile_load(addressof(task.rec)) == FAST and volatile_load(addressof(task.list)) == 0:
        return not is_beginning(task, sp)
    at = noted & ~cast(u64, _LOW_BITS)
    if not is_on_stack_of(task, at) or (at > sp and is_intact(task, at)):
        return False
    return volatile_load(addressof(task.hit_sp)) == noted


abandon_kprobe = global_var(u64, 0, name="abandon_kprobe")
"""Address of a function (task) that ends what a kprobe does in a thread; 0 before there are any."""


@native
def forget(task: ptr[Task], sp: u64) -> void:
    """The hit that has marked the task has been left, as one at `sp` shows: undo what was set while it ran."""
    if task.kprobe == SHARED_BUSY:
        task.kprobe = 0
    elif task.kprobe != 0:
        cast(fn[void, ptr[Task]], abandon_kprobe)(task)
    handlers_left(task)
    python_handlers_left(task, ~cast(u64, 0), sp)
    task.vectors = 0
    task.adopts_from = 0
    task.waiting = 0
    task.abandoned += 1
    task.list = 0
    signal_fence()
    task.rec = 0


@native(noinline=True)
def forget_left(task: ptr[Task], sp: u64) -> void:
    """A hit whose return slot is at `sp` begins: forget the one that has marked the task, if that has been left."""
    if is_left_hit(task, sp):
        forget(task, sp)
