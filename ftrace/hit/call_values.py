"""Arguments and results of calls, in a ring of the thread behind its ring of events (ftrace.hit.call_table). Native.

What a function takes and returns, and which of its pointers lead to something that is shown, is planned before it is probed. A
record of values has words: time, `Head` fields, the general registers, and then what the plan wants: vector registers, words of
the stack, and the targets of pointers, each with its address and the number of bytes (negative: unreadable).
"""

from __future__ import annotations

from ftrace.hit.account import Row
from ftrace.hit.hashing import first_place
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Task

VALUES_AT, VALUES = 8 << 20, 1 << 20
"""Offset in a row of the ring of values, and its words, a power of two."""
WORDS, ARGUMENT_WORDS = 7, 6
"""Words of general registers at both ends: of an entry di, si, dx, cx, r8, r9, sp; of a return ax, dx, cx, errno, zeros."""
HEAD_WORDS = 2
VECTOR_WORDS = 16
MAX_FOLLOWED = 8
TEXT, BYTES = 0, 1
"""What a pointer leads to: a text that ends at a NUL, or a number of bytes."""
IN_REGISTER, IN_RESULT, ON_STACK = 0, 1, 2
"""Where the pointer is, or the number of bytes: in a register of the entry by its number, in ax, in a word of the stack."""
_LOWEST, _HIGHEST = 1 << 12, 1 << 47

save_xmm = extern("ftrace_save_xmm", fn[void, ptr[u8]])


@struct
class Followed(Structure):
    """A pointer whose target is copied. `length_source`: IN_..., or 255 for `most` bytes; `unit`: bytes of one that it counts."""

    source: u8
    number: u8
    kind: u8
    length_source: u8
    length_number: u8
    through: u8  # 1: the number of bytes is where the pointer leads to that is there, as a socklen_t
    succeeds: u8  # if the result, of so many bytes, is not negative; 0: whatever it is
    reserved: u8
    most: u64


@struct
class ValuePlan(Structure):
    """What to record at one end of a function. `words`: at most, of a record."""

    words: u64
    vectors: u64
    stack: u64  # words above the return address
    count: u64
    follow: array[Followed, 8]


@struct
class FunctionPlan(Structure):
    """A function, in a hash table."""

    ip: u64  # 0: none
    known: u64  # 0: no values are recorded
    entry: ValuePlan
    leave: ValuePlan


@struct
class ValuePlans(Structure):
    """The plans of the functions of a probe, which its `action` points to. `table`: the address of its CallTable."""

    table: u64
    plans: ptr[FunctionPlan]
    mask: u64
    shift: u64


@native(inline=True)
def values_plan(plans: ptr[ValuePlans], ip: u64) -> ptr[FunctionPlan]:
    """The plan of a function; null if it has none."""
    index = first_place(ip, plans.shift)
    for _ in range(64):
        plan = addressof(plans.plans[index])
        if plan.ip == ip:
            return plan if plan.known != 0 else null
        if plan.ip == 0:
            return null
        index = (index + 1) & plans.mask
    return null


@native(inline=True)
def claim(row: ptr[Row], words: u64) -> u64:
    """Claim words that are contiguous in the ring; the number of the first. A handler of a signal may claim others meanwhile."""
    place = cast(ptr[u64], addressof(row.values))
    for _ in range(16):
        before = volatile_load(place)
        start = before
        index = before & (VALUES - 1)
        if index + words > VALUES:
            start = before + (VALUES - index)
        if single_cas(place, before, start + words):
            return start
    return volatile_load(place)


@native(inline=True)
def word_of(entry: ptr[u64], result: u64, stack: ptr[u64], source: u8, number: u8) -> u64:
    """A pointer or a length. `entry`: the general registers of the entry."""
    if source == IN_RESULT:
        return result
    if source == ON_STACK:
        return stack[cast(u64, number)]
    return entry[cast(u64, number)]


@native(inline=True)
def length_wanted(plan: ptr[Followed], entry: ptr[u64], result: u64, stack: ptr[u64]) -> u64:
    """How many bytes to copy, at most `most`."""
    if plan.length_source == 255:
        return plan.most
    length = word_of(entry, result, stack, plan.length_source, plan.length_number)
    if plan.through != 0:
        word: array[u64, 1] = zeroed
        if length < _LOWEST or length >= _HIGHEST or probe_read(addressof(word[0]), length, 4) < 0:
            return 0
        length = word[0]
    return length if length < plan.most else plan.most


@native(noinline=True)
def write_values(
    row: ptr[Row], plan: ptr[ValuePlan], time: u64, words: ptr[u64], entry: ptr[u64], result: u64, sp: u64
) -> u64:
    """Write a record; returns its number with bit 31 set. `words`: the general registers; `entry`: those of the entry."""
    start = claim(row, plan.words)
    record = cast(ptr[u64], cast(u64, row) + VALUES_AT + (start & (VALUES - 1)) * 8)
    record[0] = time
    for index in range(WORDS):
        record[HEAD_WORDS + index] = words[index]
    at: u64 = HEAD_WORDS + WORDS
    if plan.vectors != 0:
        save_xmm(cast(ptr[u8], addressof(record[at])))
        at += VECTOR_WORDS
    stack = cast(ptr[u64], addressof(record[at]))
    if plan.stack != 0:
        probe_read(addressof(record[at]), sp + 8, plan.stack * 8)
        at += plan.stack
    for number in range(plan.count):
        followed = addressof(plan.follow[number])
        address = word_of(entry, result, stack, followed.source, followed.number)
        length: i64 = -1
        wanted = length_wanted(followed, entry, result, stack)
        if followed.succeeds != 0 and cast(i64, result << (64 - 8 * cast(u64, followed.succeeds))) < 0:
            address = 0
        target = addressof(record[at + 2])
        if address >= _LOWEST and address < _HIGHEST:
            if followed.kind == TEXT:
                length = probe_read_str(target, address, wanted)
            elif wanted == 0:
                length = 0
            else:
                length = probe_read(target, address, wanted)
                if length >= 0:
                    length = cast(i64, wanted)
        record[at] = address
        record[at + 1] = cast(u64, length)
        at += 2
        if length > 0:
            at += (cast(u64, length) + 7) >> 3
    record[1] = at | plan.vectors << 32 | plan.stack << 40 | plan.count << 48
    single_cas(cast(ptr[u64], addressof(row.values)), start + plan.words, start + at)
    return (start & 0x7FFF_FFFF) | 0x8000_0000


@native(inline=True)
def keep_arguments(to: ptr[u64], regs: ptr[pt_regs]) -> void:
    """The registers that arguments come in."""
    to[0] = regs.di
    to[1] = regs.si
    to[2] = regs.dx
    to[3] = regs.cx
    to[4] = regs.r8
    to[5] = regs.r9


@native(inline=True)
def error_number(task: ptr[Task]) -> u64:
    return cast(u64, task.errno[0])
