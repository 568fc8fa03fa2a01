"""Classification of probed instructions: emulated, boosted, single-stepped, or refused.

The decoder classifies the instruction. The opcode tables are the kernel's and apply to legacy encodings only; VEX, EVEX and
XOP instructions are executed as plain copies.
"""

from __future__ import annotations

import enum
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kprobes.x86_64.emulation import emulation_of
from sandbox.x86_64.instruction import (
    ADDRESS_SIZE,
    CS_OVERRIDE,
    MAX_INSN_SIZE,
    OPERAND_SIZE,
    Encoding,
    Flow,
)

if TYPE_CHECKING:
    from kprobes.x86_64.emulation import Emulation
    from sandbox.x86_64.instruction import Instruction

BOOST_LIMIT = 10
"""The longest instruction after which a jump back still fits into the slot, in bytes."""


class Kind(enum.Enum):
    """How a probed instruction is executed."""

    EMULATE = "emulated"
    BOOST = "boosted"
    STEP = "single-stepped"
    REFUSED = "refused"


@dataclass(frozen=True)
class Classified:
    """`error` (a positive errno) and `reason` (text) are set if the instruction is refused, `emulation` if it is emulated."""

    kind: Kind
    error: int = 0
    reason: str = ""
    emulation: Emulation | None = None


def classify(insn: Instruction, *, preemptible: bool) -> Classified:
    """Classify `insn`.

    `preemptible`: nothing is boosted, as in a kernel with CONFIG_PREEMPTION. System calls are boosted even then: they may not
    return (exit), return twice (fork) or change the signal mask, so no work may be left for after them.
    """
    error, reason = refusal(insn)
    if error:
        return Classified(Kind.REFUSED, error, reason)
    emulation = emulation_of(insn)
    if emulation is not None:
        return Classified(Kind.EMULATE, emulation=emulation)
    if insn.flow is Flow.SYSCALL or (not preemptible and insn.length <= BOOST_LIMIT and can_boost(insn)):
        return Classified(Kind.BOOST)
    return Classified(Kind.STEP)


_PRIVILEGED = frozenset(
    """cli sti hlt in out insb insw insd outsb outsw outsd clts invd wbinvd wbnoinvd invlpg invlpga invpcid rdmsr wrmsr
    xsetbv lgdt lidt lldt ltr lmsw sysexit sysret swapgs clgi stgi skinit vmrun vmload vmsave vmmcall vmcall vmlaunch vmresume
    vmxoff vmxon vmclear vmptrld vmptrst vmread vmwrite vmfunc invept invvpid rsm monitor mwait clac stac encls enclv getsec
    """.split()  # noqa: SIM905 (a list of words)
)
"""Mnemonics of instructions that fault in user mode, or are for hypervisors."""

_SS, _FS = 2, 4


_accepted: set[bytes] = set()
"""The bytes of instructions that can be probed at any address."""
_MOST_ACCEPTED = 1 << 12


def refusal(insn: Instruction) -> tuple[int, str]:
    """(errno, reason) if `insn` cannot be probed at all, else (0, '')."""
    if insn.code in _accepted:
        return 0, ""
    found = _refusal(insn)
    if not found[0] and len(_accepted) < _MOST_ACCEPTED:
        _accepted.add(insn.code)
    return found


def _refusal(insn: Instruction) -> tuple[int, str]:
    if insn.flow is Flow.TRAP:
        return errno.EILSEQ, f"`{insn.text}` is a trap itself"
    if _loads_segment(insn) == _SS:
        return errno.EINVAL, f"`{insn.text}` delays traps until after the next instruction"
    if insn.length >= MAX_INSN_SIZE:
        return errno.ENOSPC, f"`{insn.text}` is too long for its slot, where a trap has to follow it"
    reason = _unsupported(insn)
    return (errno.EOPNOTSUPP, f"`{insn.text}` {reason}") if reason else (0, "")


def _loads_segment(insn: Instruction) -> int | None:
    """The number of the segment register that `mov` or `pop` loads."""
    if insn.legacy(0, 0x8E):
        return insn.reg
    if insn.legacy(1, 0xA1, 0xA9, 0xB2, 0xB4, 0xB5):  # pop fs, pop gs, lss, lfs, lgs
        return {0xA1: _FS, 0xA9: 5, 0xB2: _SS, 0xB4: _FS, 0xB5: 5}[insn.opcode]
    return None


def _unsupported(insn: Instruction) -> str:
    if insn.flow is Flow.FAR:
        return "is a far transfer"
    if insn.flow is Flow.TRANSACTION:
        return "begins a transaction, which a trap aborts"
    if insn.flow in (Flow.INDIRECT_CALL, Flow.INDIRECT_JUMP):
        return _unsupported_indirect(insn)
    if insn.flow is not Flow.NEXT and insn.flow is not Flow.SYSCALL and insn.has(OPERAND_SIZE) and not insn.wide:
        return "has a 16-bit operand size, which processors treat differently"
    if insn.legacy(1, 0x01) and insn.in_register and insn.reg == 0:
        return "is for hypervisors"
    return _privileged(insn)


def _unsupported_indirect(insn: Instruction) -> str:
    if insn.has(OPERAND_SIZE) or (insn.in_register and insn.has(ADDRESS_SIZE)):
        return "is an indirect branch with another address or operand size"
    return ""


def _privileged(insn: Instruction) -> str:
    name = insn.mnemonic.rpartition(" ")[2]
    if name in _PRIVILEGED or insn.legacy(1, 0x20, 0x21, 0x22, 0x23):
        return "is privileged"
    if _loads_segment(insn) == _FS or name == "wrfsbase":
        return "changes the thread pointer, by which threads are identified"
    return ""


_BOOSTABLE_1 = frozenset(
    {
        0x02, 0x03, 0x06, 0x08, 0x09, *range(0x1F, 0x24), 0x31, *range(0x40, 0x50), *range(0x60, 0x6C), 0x6E, 0x6F,
        *range(0x74, 0x78), 0x7E, 0x7F, *range(0x90, 0xA2), 0xA3, 0xA4, 0xA5, 0xA8, 0xA9, 0xAB, 0xAC, 0xAD,
        *range(0xAF, 0xB8), *range(0xBB, 0xC2), *range(0xC8, 0xD0), 0xD1, 0xD2, 0xD3, 0xD5, 0xD8, 0xD9, 0xDB, 0xDC, 0xDD,
        0xDF, 0xE1, 0xE2, 0xE5, 0xE8, 0xE9, 0xEB, 0xEC, 0xED, 0xEF, 0xF1, 0xF2, 0xF3, 0xF5, 0xF8, 0xF9, 0xFA,
        0xFC, 0xFD, 0xFE,
    }
)  # fmt: skip
"""The opcodes after 0f that can be boosted."""

_UNBOOSTABLE_0 = frozenset(
    {0x62, *range(0x70, 0x80), 0x9A, 0xCC, 0xCD, 0xCE, 0xD6, *range(0xD8, 0xE4), 0xE8, 0xE9, 0xEB, *range(0xF0, 0xF5)}
)
_SHIFTS, _UNARY, _STEP_BYTE, _GROUP_5 = (0xC0, 0xC1, 0xD0, 0xD1, 0xD2, 0xD3), (0xF6, 0xF7), 0xFE, 0xFF


def can_boost(insn: Instruction) -> bool:
    """The kernel's can_boost() of 6.12, except for VEX, EVEX and XOP, which it misreads."""
    if insn.has(CS_OVERRIDE) or insn.has(ADDRESS_SIZE):
        return False
    if insn.encoding is not Encoding.LEGACY:
        return True
    if insn.opcode_map:
        return insn.opcode_map == 1 and insn.opcode in _BOOSTABLE_1
    return insn.opcode not in _UNBOOSTABLE_0 and _member_boosts(insn.opcode, insn.reg)


def _member_boosts(opcode: int, reg: int) -> bool:
    """Whether this member of an opcode group can be boosted; true for opcodes that are not groups."""
    if opcode in _SHIFTS:
        return reg != 6
    if opcode in _UNARY:
        return reg != 1
    if opcode == _STEP_BYTE:
        return reg < 2
    return opcode != _GROUP_5 or reg in (0, 1, 4)
