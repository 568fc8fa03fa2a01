"""Emulation of probed instructions on a pt_regs: the description of each.

An instruction in, a record of plain numbers out. The native half (kprobes.hit.emulate) executes the record.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.x86_64.instruction import ADDRESS_SIZE, OPERAND_SIZE, Flow
from sandbox.x86_64.operand import memory_operand

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction
    from sandbox.x86_64.operand import MemoryOperand


class Operation(enum.IntEnum):
    """The operation of an emulated instruction. `next` is the address after it."""

    JUMP = 1
    """ip = target"""
    JUMP_IF = 2
    """ip = target if `condition` (the low four bits of the opcode of jcc) holds, else next"""
    LOOP = 3
    """count -= 1, then ip = target if count != 0 and `condition` holds (0: ZF clear, 1: ZF set, 2: always), else next;
    count is rcx, or with `width` 4 ecx, whose decrement clears the upper half of rcx"""
    JUMP_IF_COUNT_ZERO = 4
    """ip = target if rcx (with `width` 4: ecx) is zero, else next"""
    CALL = 5
    """push next; ip = target"""
    JUMP_REGISTER = 6
    """ip = `register`"""
    CALL_REGISTER = 7
    """read `register`; push next; ip = what was read"""
    RETURN = 8
    """pop ip; sp += `immediate`"""
    RETURN_FAR = 9
    """pop ip and cs, `width` (4 or 8) bytes each; sp += `immediate`"""
    PUSHF = 10
    """push the flags, with RF and VM clear"""
    POPF = 11
    """pop the flags; only those that user mode may change are changed"""
    JUMP_MEMORY = 12
    """ip = the word at `operand`"""
    CALL_MEMORY = 13
    """read the word at `operand`; push next; ip = what was read"""


LOOP_NOT_EQUAL, LOOP_EQUAL, LOOP_ALWAYS = 0, 1, 2

POPF_FLAGS = 0x0024_4DD5
"""CF PF AF ZF SF TF DF OF NT AC ID: what `popf` changes in user mode."""


@dataclass(frozen=True)
class Emulation:
    """One emulated instruction. `length` and `width` in bytes; `target`: an address. Fields that do not apply are 0."""

    operation: Operation
    length: int
    target: int = 0
    condition: int = 0
    register: int = 0
    immediate: int = 0
    width: int = 8
    operand: MemoryOperand | None = None

    @property
    def accesses_memory(self) -> bool:
        """Whether it can fault itself. (A branch to inaccessible code faults at its target.)"""
        return self.operation not in _WITHOUT_MEMORY


_WITHOUT_MEMORY = frozenset(
    {Operation.JUMP, Operation.JUMP_IF, Operation.LOOP, Operation.JUMP_IF_COUNT_ZERO, Operation.JUMP_REGISTER}
)

_PUSHF, _POPF = 0x9C, 0x9D


def emulation_of(insn: Instruction) -> Emulation | None:
    """How to emulate `insn`; None if it is not emulated. 16-bit branches are not."""
    if insn.flow is Flow.NEXT:
        return _flags_on_stack(insn)
    if insn.has(OPERAND_SIZE) and not insn.wide:
        return None
    make = _MAKERS.get(insn.flow)
    return make(insn) if make else None


def _flags_on_stack(insn: Instruction) -> Emulation | None:
    if insn.has(OPERAND_SIZE) or not insn.legacy(0, _PUSHF, _POPF):
        return None
    return Emulation(Operation.PUSHF if insn.opcode == _PUSHF else Operation.POPF, insn.length)


def _jump(insn: Instruction) -> Emulation:
    return Emulation(Operation.JUMP, insn.length, insn.target or 0)


def _call(insn: Instruction) -> Emulation:
    return Emulation(Operation.CALL, insn.length, insn.target or 0)


def _conditional(insn: Instruction) -> Emulation:
    return Emulation(Operation.JUMP_IF, insn.length, insn.target or 0, insn.opcode & 15)


def _count_width(insn: Instruction) -> int:
    return 4 if insn.has(ADDRESS_SIZE) else 8


def _loop(insn: Instruction) -> Emulation:
    return Emulation(Operation.LOOP, insn.length, insn.target or 0, insn.opcode & 3, width=_count_width(insn))


def _count(insn: Instruction) -> Emulation:
    return Emulation(Operation.JUMP_IF_COUNT_ZERO, insn.length, insn.target or 0, width=_count_width(insn))


def _indirect(insn: Instruction) -> Emulation | None:
    call = insn.flow is Flow.INDIRECT_CALL
    if not insn.in_register:
        operation = Operation.CALL_MEMORY if call else Operation.JUMP_MEMORY
        return Emulation(operation, insn.length, operand=memory_operand(insn))
    if insn.has(ADDRESS_SIZE):
        return None
    operation = Operation.CALL_REGISTER if call else Operation.JUMP_REGISTER
    return Emulation(operation, insn.length, register=insn.register)


def _immediate(insn: Instruction) -> int:
    return int.from_bytes(insn.code[-2:], "little") if insn.opcode in (0xC2, 0xCA) else 0


def _return(insn: Instruction) -> Emulation:
    return Emulation(Operation.RETURN, insn.length, immediate=_immediate(insn))


def _return_far(insn: Instruction) -> Emulation:
    width = 8 if insn.wide else 4
    return Emulation(Operation.RETURN_FAR, insn.length, immediate=_immediate(insn), width=width)


_MAKERS = {
    Flow.JUMP: _jump, Flow.CALL: _call, Flow.CONDITIONAL: _conditional, Flow.LOOP: _loop, Flow.COUNT: _count,
    Flow.INDIRECT_CALL: _indirect, Flow.INDIRECT_JUMP: _indirect, Flow.RETURN: _return, Flow.FAR_RETURN: _return_far,
}  # fmt: skip
