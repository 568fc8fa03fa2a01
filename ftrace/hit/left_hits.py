"""Hits that never end: a signal's handler has interrupted one, or runs inside its handler, and leaves it by siglongjmp.

Such a hit leaves its task marked. A later hit finds the mark, as does one inside a hit in progress. So each outermost hit notes
where its stack begins, and what proves that it is intact: a hit that is in progress is above any that is inside it.

Only if it has been interrupted before that (`rec` is FAST, and no list is known) is the place unknown. Then the frame of the
signal shows whether it is still in progress: the task's address is in a register.
"""

from __future__ import annotations

from ftrace.hit.cancellation import handlers_left
from ftrace.hit.nodes import EXIT_FROM_STUB, frame_of, off_signal_stack, on_one_stack, on_own_stack, readable, word_at
from ftrace.hit.parking import EMPTY, spare_stubs
from ftrace.hit.records import SHARED_BUSY
from ftrace.hit.recursion import FAST
from sandbox.native import (
    addressof,
    array,
    bool_,
    cast,
    fn,
    global_var,
    native,
    ptr,
    signal_fence,
    u8,
    u64,
    void,
    volatile_load,
    zeroed,
)
from sandbox.threads.tasks import NODE, Node, Task

AT_RETURN, ITSELF, UNVERIFIED = 1, 2, 4
"""Low bits of Task.hit_sp: what is there while the hit lasts. AT_RETURN: the return slot of a call whose node is on the shadow
stack. ITSELF: its own address. UNVERIFIED: anything. 0: the return into the stub, after the call of the trampoline."""
_LOW_BITS = 7

_CALL = 0x12FF41
"""The instruction before the return into a stub or detour: call *(%r10)."""


@native(inline=True)
def note_hit(task: ptr[Task], here: ptr[u64]) -> void:
    """An outermost hit on the slow path begins. `here`: a word of the stack that nobody else changes while it lasts."""
    here[0] = cast(u64, here)
    task.hit_sp = cast(u64, here) | ITSELF
    signal_fence()


@native
def is_call_of_stub(end: u64) -> bool_:
    """Whether the instruction before `end` is that of a stub or detour which calls the trampoline."""
    if end < 4096 or not readable(end - 3) or not readable(end - 1):
        return False
    code = cast(ptr[u8], end - 3)
    return cast(u64, code[0]) | cast(u64, code[1]) << 8 | cast(u64, code[2]) << 16 == _CALL


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
    if task.hit_sp & AT_RETURN != 0:
        return is_returning(task, at)
    return task.hit_sp & UNVERIFIED != 0 or is_call_of_stub(word_at(at)[0])


_SEGMENTS = 0x002B_0000_0000_0033
"""cs, gs, fs and ss in a signal's frame, as one word."""
_GENERAL, _SP, _BEFORE = 16, 15, 18
"""Words of a signal's frame: the general registers, which of them is the stack pointer, and how far they are before cs."""
_FAR, _PAGE = 65536, 4096


@native
def signal_frame(start: u64, end: u64) -> u64:
    """The address of the registers in the first frame of a signal from `start` to `end`, not far up; 0: there is none."""
    address = start + 7 & ~7
    end = min(end, start + _FAR)
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
    registers = signal_frame(sp, sp + _FAR)
    for _ in range(8):
        if registers == 0:
            return False
        for index in range(_GENERAL):
            if word_at(registers)[index] == cast(u64, task):
                return True
        above = word_at(registers)[_SP]
        registers = signal_frame(above, above + _FAR)
    return False


@native
def is_left_hit(task: ptr[Task], sp: u64) -> bool_:
    """Whether the hit that has marked the task has been left, given another one whose return slot is at `sp`."""
    if task.rec == FAST and task.list == 0:
        return not is_beginning(task, sp)
    here: array[u64, 1] = zeroed
    at = task.hit_sp & ~cast(u64, _LOW_BITS)
    if spare_stubs != 0 and task.hit_sp & ITSELF != 0:  # a handler may have switched to another greenlet
        return False
    if at <= sp and (cast(u64, addressof(here[0])) <= at or on_one_stack(at, sp)):
        return True
    if not on_own_stack(at):
        return off_signal_stack(at) or not is_intact(task, at)
    if task.hit_sp & ITSELF != 0 or not on_own_stack(sp):
        return not is_intact(task, at)
    return signal_frame(sp, at) == 0  # in a fast hit, only the handler of a signal makes others


abandon_kprobe = global_var(u64, 0, name="abandon_kprobe")
"""Address of a function (task) that ends what a kprobe does in a thread; 0 before there are any."""


@native
def forget(task: ptr[Task]) -> void:
    """The hit that has marked the task has been left: undo what was set while it ran."""
    if task.kprobe == SHARED_BUSY:
        task.kprobe = 0
    elif task.kprobe != 0:
        cast(fn[void, ptr[Task]], abandon_kprobe)(task)
    handlers_left(task)
    task.vectors = 0
    task.waiting = 0
    task.abandoned += 1
    task.list = 0
    signal_fence()
    task.rec = 0


@native(noinline=True)
def forget_left(task: ptr[Task], sp: u64) -> void:
    """A hit whose return slot is at `sp` begins: forget the one that has marked the task, if that has been left."""
    if is_left_hit(task, sp):
        forget(task)
