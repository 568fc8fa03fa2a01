"""Moving an instruction to another address. Bytes in, bytes out.

`relocate` keeps the length, for slots; `expand` may need more bytes, for detours, in which calls and jumps have their original
effects: a call pushes the original return address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandbox.x86_64.encoding import JMP32, displacement, jump
from sandbox.x86_64.instruction import ADDRESS_SIZE, DIRECT, OPERAND_SIZE, Flow

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

_CALL32 = 0xE8
_PUSH_RIP_RELATIVE = b"\xff\x35"
_JUMP_OVER_A_WORD = bytes.fromhex("ff2508000000")
"""A jump to the address in the second word after it."""
_LEA_RCX_RIP_RELATIVE = b"\x48\x8d\x0d"
_JUMP, _PUSH = 4, 6
"""Operations of group 5, which indirect calls belong to."""


def relocate(insn: Instruction, to: int) -> bytes:
    """The bytes that do at `to` what `insn` does at its address, in the same length.

    RIP-relative operands and targets of near branches keep their addresses. Raises OverflowError when a displacement
    does not fit: beyond 2 GB, or beyond 127 bytes in a short branch.
    """
    if insn.flow is not Flow.NEXT and (insn.flow in DIRECT or insn.flow is Flow.TRANSACTION):
        return _retargeted(insn, to)
    if not insn.displacement_offset:
        return insn.code
    at = insn.displacement_offset
    return insn.code[:at] + _rebased(insn, to) + insn.code[at + 4 :]


def _rebased(insn: Instruction, to: int) -> bytes:
    """The displacement of a RIP-relative operand; with 32-bit addresses it wraps and so always fits."""
    assert insn.rip_target is not None
    after = to + insn.length
    if insn.has(ADDRESS_SIZE):
        return ((insn.rip_target - after) % (1 << 32)).to_bytes(4, "little")
    return displacement(insn.rip_target, after)


def _retargeted(insn: Instruction, to: int) -> bytes:
    assert insn.target is not None
    if _is_short(insn):
        distance = insn.target - (to + insn.length)
        if not -128 <= distance < 128:
            raise OverflowError(f"{insn.target:#x} is out of range of `{insn.mnemonic}` at {to:#x}")
        return insn.code[:-1] + distance.to_bytes(1, "little", signed=True)
    return insn.code[:-4] + displacement(insn.target, to + insn.length)


def _is_short(insn: Instruction) -> bool:
    return insn.opcode_map == 0 and insn.opcode not in (_CALL32, JMP32, 0xC7)


def expand(insn: Instruction, to: int) -> bytes:
    """The bytes that do at `to`, in a detour, what `insn` does at its address.

    They fall through where the original does. Raises OverflowError for distances beyond 2 GB, and ValueError for an instruction
    that cannot be moved: a trap, a far transfer, the beginning of a transaction, a 16-bit branch, a call through rsp.
    """
    refuse_to_move(insn)
    make = _EXPANSIONS.get(insn.flow)
    return make(insn, to) if make else relocate(insn, to)


def refuse_to_move(insn: Instruction) -> None:
    """Raise ValueError if `insn` cannot be moved into a detour."""
    if insn.flow is Flow.NEXT:
        return
    if insn.flow in (Flow.TRAP, Flow.FAR, Flow.TRANSACTION, Flow.FAR_RETURN):
        raise ValueError(f"`{insn.text}` is {insn.flow.value}")
    if insn.flow is not Flow.SYSCALL and insn.has(OPERAND_SIZE) and not insn.wide:
        raise ValueError(f"`{insn.text}` has a 16-bit operand size")
    if insn.flow is Flow.INDIRECT_CALL and insn.in_register and insn.register == 4:
        raise ValueError(f"`{insn.text}` calls where the stack pointer points")


def _jump(insn: Instruction, to: int) -> bytes:
    assert insn.target is not None
    return jump(to, insn.target)


def _conditional(insn: Instruction, to: int) -> bytes:
    assert insn.target is not None
    return bytes([0x0F, 0x80 | insn.opcode & 15]) + displacement(insn.target, to + 6)


def _by_count(insn: Instruction, to: int) -> bytes:
    """`loop taken; jmp over; taken: jmp target; over:`, since there is no long form."""
    head = insn.code[:-1] + b"\x02\xeb\x05"
    assert insn.target is not None
    return head + jump(to + len(head), insn.target)


def _push_return(insn: Instruction, branch: bytes) -> bytes:
    """`push` of the original return address, which is stored after the branch; then the branch."""
    return _PUSH_RIP_RELATIVE + len(branch).to_bytes(4, "little") + branch + insn.end.to_bytes(8, "little")


def _call(insn: Instruction, to: int) -> bytes:
    assert insn.target is not None
    return _push_return(insn, jump(to + 6, insn.target))


def call_from_anywhere(insn: Instruction) -> bytes:
    """A direct call in 28 bytes, wherever they are: `push return; jmp *target`."""
    assert insn.target is not None
    return _push_return(insn, _JUMP_OVER_A_WORD) + insn.target.to_bytes(8, "little")


def _indirect_call(insn: Instruction, to: int) -> bytes:
    """A register is jumped to. An operand in memory is read first: it may lie where the return address goes, or nowhere.

    `push operand; push (%rsp); lea 16(%rsp),%rsp; push return; jmp *-8(%rsp)`: below the return address is only what the
    called function is free to overwrite.
    """
    if insn.in_register:
        return _push_return(insn, _other_operation(insn.code, insn, _JUMP))
    head = _other_operation(relocate(insn, to), insn, _PUSH) + bytes.fromhex("ff3424 488d642410")
    return head + _push_return(insn, bytes.fromhex("ff6424f8"))


def _other_operation(code: bytes, insn: Instruction, operation: int) -> bytes:
    """Group 5 with another reg field in its ModRM."""
    changed = bytearray(code)
    changed[insn.modrm_offset] = changed[insn.modrm_offset] & ~0x38 | operation << 3
    return bytes(changed)


def _syscall(insn: Instruction, to: int) -> bytes:
    """`syscall` leaves its return address in rcx: `lea` puts the original one there, with the flags untouched."""
    return insn.code + _LEA_RCX_RIP_RELATIVE + displacement(insn.end, to + insn.length + 7)


_EXPANSIONS = {
    Flow.CALL: _call, Flow.JUMP: _jump, Flow.CONDITIONAL: _conditional, Flow.LOOP: _by_count, Flow.COUNT: _by_count,
    Flow.INDIRECT_CALL: _indirect_call, Flow.SYSCALL: _syscall,
}  # fmt: skip
