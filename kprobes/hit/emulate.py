"""Emulation of probed instructions on a pt_regs: the native half, and its access to memory in assembly."""

from __future__ import annotations

from ftrace.hit.x86_64.pt_regs import pt_regs
from kprobes.hit.records import NO_REGISTER, Emulated, Operand
from kprobes.x86_64.emulation import LOOP_ALWAYS, LOOP_EQUAL, POPF_FLAGS, Operation
from sandbox.native import *
from sandbox.x86_64.operand import Segment

load_word = extern("kprobe_load", fn[u64, u64, u64, u64])
store_word = extern("kprobe_store", fn[u64, u64, u64])
"""0 if the memory is not accessible: GUARDED_ACCESS."""

CF, PF, ZF, SF, OF = 1, 4, 0x40, 0x80, 0x800
_HIDDEN = 0x3_0000
"""RF and VM, which pushf clears."""

_WORDS = (10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0)


def register_word(number: int) -> int:
    """The number of the word of pt_regs that holds a general register (rax 0, rcx 1, ... r15 15)."""
    return _WORDS[number]


@native
def push(regs: ptr[pt_regs], value: u64) -> bool_:
    """Push a word. False, with nothing changed, if the stack is not accessible."""
    if store_word(regs.sp - 8, value) == 0:
        return False
    regs.sp -= 8
    return True


@native
def call(regs: ptr[pt_regs], target: u64, following: u64) -> bool_:
    if not push(regs, following):
        return False
    regs.ip = target
    return True


@native
def return_from(this: ptr[Emulated], regs: ptr[pt_regs]) -> bool_:
    """A near return, or a far one that leaves the code segment unchanged."""
    to: array[u64, 1] = zeroed
    if load_word(regs.sp, Segment.NONE, cast(u64, addressof(to[0]))) == 0:
        return False
    regs.ip = to[0]
    regs.sp += 8 + this.immediate
    if this.operation == Operation.RETURN_FAR:
        if this.width == 4:
            regs.ip &= 0xFFFF_FFFF
        else:
            regs.sp += 8
    return True


@native
def pop_flags(regs: ptr[pt_regs]) -> bool_:
    found: array[u64, 1] = zeroed
    if load_word(regs.sp, Segment.NONE, cast(u64, addressof(found[0]))) == 0:
        return False
    regs.flags = regs.flags & ~cast(u64, POPF_FLAGS) | found[0] & POPF_FLAGS
    regs.sp += 8
    return True


@native
def address_of(operand: ptr[Operand], regs: ptr[pt_regs]) -> u64:
    """The address of a memory operand, without the segment's base."""
    words = cast(ptr[u64], regs)
    address = operand.displacement
    if operand.base != NO_REGISTER:
        address += words[operand.base]
    if operand.index != NO_REGISTER:
        address += words[operand.index] * cast(u64, operand.scale)
    if operand.width == 4:
        address &= 0xFFFF_FFFF
    return address


@native
def branch_through_memory(this: ptr[Emulated], regs: ptr[pt_regs], following: u64) -> bool_:
    """jmp or call through memory. The operand is read before anything is pushed."""
    to: array[u64, 1] = zeroed
    operand = addressof(this.operand)
    if load_word(address_of(operand, regs), cast(u64, operand.segment), cast(u64, addressof(to[0]))) == 0:
        return False
    if this.operation == Operation.CALL_MEMORY:
        return call(regs, to[0], following)
    regs.ip = to[0]
    return True


@native
def basic_condition(kind: u32, flags: u64) -> bool_:
    """O, C, Z, C or Z, S, P, L, L or Z."""
    less = (flags & SF != 0) != (flags & OF != 0)
    if kind == 0:
        return flags & OF != 0
    if kind == 1:
        return flags & CF != 0
    if kind == 2:
        return flags & ZF != 0
    if kind == 3:
        return flags & (CF | ZF) != 0
    if kind == 4:
        return flags & SF != 0
    if kind == 5:
        return flags & PF != 0
    if kind == 6:
        return less
    return less or flags & ZF != 0


@native
def holds(condition: u32, flags: u64) -> bool_:
    """Whether the condition of a jcc (the low bits of its opcode) holds."""
    return basic_condition(condition >> 1, flags) != (condition & 1 != 0)


@native
def count_down(regs: ptr[pt_regs], width: u32) -> u64:
    """Decrement rcx or ecx, and return it."""
    left = regs.cx - 1
    if width == 4:
        left &= 0xFFFF_FFFF
    regs.cx = left
    return left


@native
def takes_branch(this: ptr[Emulated], regs: ptr[pt_regs]) -> bool_:
    """Whether a conditional branch is taken. For a loop, this decrements the count."""
    if this.operation == Operation.JUMP_IF:
        return holds(this.condition, regs.flags)
    if this.operation == Operation.JUMP_IF_COUNT_ZERO:
        count = regs.cx
        if this.width == 4:
            count &= 0xFFFF_FFFF
        return count == 0
    left = count_down(regs, this.width)
    if this.condition == LOOP_ALWAYS:
        return left != 0
    return left != 0 and (regs.flags & ZF != 0) == (this.condition == LOOP_EQUAL)


@native
def carry_out(this: ptr[Emulated], regs: ptr[pt_regs], following: u64) -> bool_:
    """Emulate the instruction. `following`: the address after it, which becomes regs.ip unless it branches.

    False, with nothing changed, if memory that it accesses is not accessible.
    """
    operation = this.operation
    words = cast(ptr[u64], regs)
    if operation == Operation.CALL:
        return call(regs, this.target, following)
    if operation == Operation.CALL_REGISTER:
        return call(regs, words[this.register], following)
    if operation == Operation.JUMP_MEMORY or operation == Operation.CALL_MEMORY:
        return branch_through_memory(this, regs, following)
    if operation == Operation.RETURN or operation == Operation.RETURN_FAR:
        return return_from(this, regs)
    if operation == Operation.PUSHF and not push(regs, regs.flags & ~cast(u64, _HIDDEN)):
        return False
    if operation == Operation.POPF and not pop_flags(regs):
        return False
    regs.ip = following
    if operation == Operation.JUMP:
        regs.ip = this.target
    elif operation == Operation.JUMP_REGISTER:
        regs.ip = words[this.register]
    elif operation != Operation.PUSHF and operation != Operation.POPF and takes_branch(this, regs):
        regs.ip = this.target
    return True


GUARDED_ACCESS = """
# u64 kprobe_load(u64 address, u64 segment, u64 *value) and u64 kprobe_store(u64 address, u64 value): 1, or 0 if the memory is
# not accessible. They push nothing: after a fault, kprobes.hit.faulting continues at kprobe_no_access.
#   rdi = address   rsi = segment (sandbox.x86_64.operand), value   rdx = value   rax = result
    .globl kprobe_load, kprobe_store, kprobe_no_access
    .p2align 4
kprobe_load:
    .cfi_startproc
    cmp $1, %esi
    je 1f
    ja 2f
    mov (%rdi), %rax
    jmp 3f
1:  mov %fs:(%rdi), %rax
    jmp 3f
2:  mov %gs:(%rdi), %rax
3:  mov %rax, (%rdx)
    mov $1, %eax
    ret
kprobe_store:
    mov %rsi, (%rdi)
    mov $1, %eax
    ret
kprobe_no_access:
    xor %eax, %eax
    ret
    .cfi_endproc
"""
"""Fault-safe reading and writing of one word, as assembly text (AT&T)."""
