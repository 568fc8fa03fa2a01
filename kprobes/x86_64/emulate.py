"""Instructions that are carried out on a pt_regs instead of being executed, with their architectural meaning (KP-27, KP-34)."""

from __future__ import annotations

from ftrace.hit.dispatch import pt_regs
from kprobes.hit.records import Emulated
from kprobes.x86_64.emulation import LOOP_ALWAYS, LOOP_EQUAL, POPF_FLAGS, Operation
from sandbox.native import bool_, cast, native, ptr, u32, u64, void

CF, PF, ZF, SF, OF = 1, 4, 0x40, 0x80, 0x800
_HIDDEN = 0x3_0000
"""RF and VM, which pushf clears."""

_WORDS = (10, 11, 12, 5, 19, 4, 13, 14, 9, 8, 7, 6, 3, 2, 1, 0)


def register_word(number: int) -> int:
    """Which word of pt_regs is the general register with this number (rax 0, rcx 1, ... r15 15)."""
    return _WORDS[number]


@native
def push(regs: ptr[pt_regs], value: u64) -> void:
    regs.sp -= 8
    cast(ptr[u64], regs.sp)[0] = value


@native
def pop(regs: ptr[pt_regs]) -> u64:
    value = cast(ptr[u64], regs.sp)[0]
    regs.sp += 8
    return value


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
    """Whether the condition of a jcc, the low bits of its opcode, is met."""
    return basic_condition(condition >> 1, flags) != (condition & 1 != 0)


@native
def count_down(regs: ptr[pt_regs], width: u32) -> u64:
    """Decrement rcx, or ecx, and give it."""
    left = regs.cx - 1
    if width == 4:
        left &= 0xFFFF_FFFF
    regs.cx = left
    return left


@native
def takes_branch(this: ptr[Emulated], regs: ptr[pt_regs]) -> bool_:
    """Whether a conditional branch is taken; counts."""
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
def carry_out(this: ptr[Emulated], regs: ptr[pt_regs], following: u64) -> void:
    """Carry out the instruction; `following` is the address behind it, where regs.ip goes unless it branches."""
    operation = this.operation
    words = cast(ptr[u64], regs)
    regs.ip = following
    if operation == Operation.JUMP:
        regs.ip = this.target
    elif operation == Operation.CALL:
        push(regs, following)
        regs.ip = this.target
    elif operation == Operation.RETURN:
        regs.ip = pop(regs)
        regs.sp += this.immediate
    elif operation == Operation.RETURN_FAR:
        regs.ip = pop(regs)
        if this.width == 4:
            regs.ip &= 0xFFFF_FFFF
            regs.sp -= 8
        regs.sp += 8 + this.immediate
    elif operation == Operation.JUMP_REGISTER:
        regs.ip = words[this.register]
    elif operation == Operation.CALL_REGISTER:
        target = words[this.register]
        push(regs, following)
        regs.ip = target
    elif operation == Operation.PUSHF:
        push(regs, regs.flags & ~cast(u64, _HIDDEN))
    elif operation == Operation.POPF:
        regs.flags = regs.flags & ~cast(u64, POPF_FLAGS) | pop(regs) & POPF_FLAGS
    elif takes_branch(this, regs):
        regs.ip = this.target
