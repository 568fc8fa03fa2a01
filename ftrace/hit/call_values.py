"""Arguments and results of calls in their records (ftrace.hit.call_records). Native.

What a function takes and returns, and which of its pointers lead to something that is shown, is planned before it is probed. The
values of a call are words: general registers, and then what the plan wants: vector registers, words of the stack, and the
targets of pointers, each with its address and the number of bytes (negative: unreadable).
"""

from __future__ import annotations

from ftrace.hit.hashing import entry_of
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import *
from sandbox.threads.tasks import Task

ARGUMENT_WORDS, RESULT_WORDS = 6, 3
"""Words of general registers: of an entry di, si, dx, cx, r8, r9; of a return dx, cx, errno."""
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
    """What to record at one end of a function. `length`: bytes of a record, at most."""

    length: u64
    vectors: u64
    stack: u64  # words above the return address
    count: u64
    follow: array[Followed, 8]


@struct
class FunctionPlan(Structure):
    """A function, in a hash table."""

    ip: u64  # 0: none
    entry: ValuePlan
    leave: ValuePlan


@struct
class ValuePlans(Structure):
    """The plans of the functions of a probe, which its `action` points to. `table`: the address of its CallTable."""

    table: u64
    plans: u64  # address of a FunctionTable of FunctionPlan
    mask: u64
    shift: u64


@native(inline=True)
def values_plan(plans: ptr[ValuePlans], ip: u64) -> ptr[FunctionPlan]:
    """The plan of a function; null if it has none."""
    return cast(ptr[FunctionPlan], entry_of(plans.plans, sizeof(FunctionPlan), plans.mask, plans.shift, ip))


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
def write_values(record: ptr[u64], at: u64, plan: ptr[ValuePlan], entry: ptr[u64], result: u64, sp: u64) -> u64:
    """Write what follows the general registers, from a word of the record on. `entry`: those of the entry. The word after it."""
    if plan.vectors != 0:
        save_xmm(cast(ptr[u8], addressof(record[at])))
        at += VECTOR_WORDS
    stack = cast(ptr[u64], addressof(record[at]))
    if plan.stack != 0:
        probe_read(addressof(record[at]), sp + 8, plan.stack * 8)
        at += plan.stack
    for number in range(min(plan.count, MAX_FOLLOWED)):
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
    return at


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
