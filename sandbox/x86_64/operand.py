"""The memory operand of an instruction, from its ModRM and SIB bytes: its address is computed from a pt_regs."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.x86_64.instruction import ADDRESS_SIZE

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

_FS_OVERRIDE, _GS_OVERRIDE = 0x64, 0x65
_REX_B, _REX_X = 1, 2
_SIB, _NO_BASE, _NO_INDEX = 4, 5, 4


class Segment(enum.IntEnum):
    """Segments that are added to an address; the bases of the others are 0."""

    NONE = 0
    FS = 1
    GS = 2


@dataclass(frozen=True)
class MemoryOperand:
    """base + index * scale + displacement, of which the low `width` bytes count, and a segment's base.

    `base` and `index` are numbers of registers, or None; relative to rip, `displacement` is the whole address.
    """

    base: int | None
    index: int | None
    scale: int
    displacement: int
    width: int = 8
    segment: Segment = Segment.NONE


def memory_operand(insn: Instruction) -> MemoryOperand:
    """The operand of an instruction whose ModRM is not a register."""
    assert insn.modrm is not None
    width = 4 if insn.has(ADDRESS_SIZE) else 8
    if insn.rip_target is not None:
        return MemoryOperand(None, None, 1, insn.rip_target, width, _segment(insn))
    mode, low, at = insn.modrm >> 6, insn.modrm & 7, insn.modrm_offset + 1
    base: int | None = low | _extended(insn, _REX_B)
    index, scale = None, 1
    if low == _SIB:
        sib = insn.code[at]
        at += 1
        base = None if sib & 7 == _NO_BASE and not mode else sib & 7 | _extended(insn, _REX_B)
        number = sib >> 3 & 7 | _extended(insn, _REX_X)
        index, scale = (number, 1 << (sib >> 6)) if number != _NO_INDEX else (None, 1)
    size = 4 if base is None else (0, 1, 4)[mode]
    displacement = int.from_bytes(insn.code[at : at + size], "little", signed=True)
    return MemoryOperand(base, index, scale, displacement, width, _segment(insn))


def _extended(insn: Instruction, bit: int) -> int:
    return 8 if insn.rex & bit else 0


def _segment(insn: Instruction) -> Segment:
    """The last override counts."""
    chosen = [prefix for prefix in insn.prefixes if prefix in (_FS_OVERRIDE, _GS_OVERRIDE)]
    if not chosen:
        return Segment.NONE
    return Segment.FS if chosen[-1] == _FS_OVERRIDE else Segment.GS
