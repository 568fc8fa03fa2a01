"""How to unwind from the copies of probed instructions to where they were copied from. Bytes in, bytes out.

Slots, and detours of jumps, are described by a page: in a slot the offset says what has been executed, and its last word leads to
the record, which has the address. In a detour, where there may be several instructions, and calls that push what they return to,
a table beside the page has a byte for each byte of code: a *step*, 0 where no instruction begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.x86_64.frames import (
    AND,
    BRA,
    DEF_CFA,
    DROP,
    DUP,
    EQ,
    GE,
    IS_VALUE,
    MINUS,
    MUL,
    NE,
    OR,
    PLUS,
    RIP,
    RSP,
    SHR,
    SKIP,
    SWAP,
    Jump,
    Label,
    byte,
    const1s,
    const1u,
    const8u,
    field,
    joined,
    op,
    register,
    rule,
    section,
)
from sandbox.x86_64.instruction import Flow

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

_UNIT = 64
"""Slots have so many bytes, and detours a multiple of that."""
_RED_ZONE, _WORD = 128, 8

# A step: how far the instruction is behind the probed one, plus 1; words on the stack; whether the red zone is skipped.
_HOW_FAR, _WORDS_AT, _SKIPPED = 0x1F, 5, 0x80


def _unit() -> bytes:
    """Where the slot, or the 64 bytes of a detour, begin."""
    return register(RIP) + const1s(-_UNIT) + op(AND)


def _is_at(offset: int) -> bytes:
    """The offset in the slot on top: replaced by whether it is this one."""
    return const1u(offset) + op(EQ)


def slot_section(start: int, size: int, detour: int, record: int, fields: tuple[int, int]) -> bytes:
    """An .eh_frame section for the slots at `start` (address, bytes).

    `detour`, `record`: offsets of a slot's detour and of its record's address; `fields`: those of address and length in a
    record. A slot has copies at multiples of 16, and what follows one has executed it.
    """
    offset = register(RIP) + const1u(_UNIT - 1) + op(AND)
    pushed = offset + _is_at(detour + 5) + const1u(_RED_ZONE) + op(MUL)
    pushed += offset + _is_at(detour + 11) + const1u(_RED_ZONE + _WORD) + op(MUL, PLUS)
    is_before = offset + const1u(15) + op(AND) + const1u(0) + op(EQ) + offset + const1u(detour) + op(GE, OR)
    ip = joined(
        op(DROP) + _unit() + field(record) + op(DUP) + field(fields[0]), is_before, Jump(BRA, "before"),
        op(SWAP) + field(fields[1]) + op(PLUS), Label("before"),
    )  # fmt: skip
    rules = rule(DEF_CFA, register(RSP) + pushed + op(PLUS)) + rule(IS_VALUE, ip, RIP)
    return section(start, size, rules, signal_frame=True)


def detour_section(start: int, size: int, steps: int, units: int, record: int, address: int) -> bytes:
    """An .eh_frame section for the detours at `start` (address, bytes), with a table of steps at the address `steps`.

    At `units` a byte for each 64 bytes of code says how many such pieces of the same detour are before it; the first has at
    `record` the address of a record, which at `address` has that of the probed instruction.
    """
    offset = register(RIP) + const8u(start) + op(MINUS)
    step = const8u(steps) + offset + op(PLUS) + byte()
    pushed = step + const1u(_WORDS_AT) + op(SHR) + const1u(3) + op(AND) + const1u(_WORD) + op(MUL)
    pushed += step + const1u(7) + op(SHR) + const1u(_RED_ZONE) + op(MUL, PLUS)
    before = const8u(units) + offset + const1u(6) + op(SHR, PLUS) + byte() + const1u(_UNIT) + op(MUL)
    probed = _unit() + before + op(MINUS) + field(record) + field(address)
    ip = joined(
        op(DROP) + step + const1u(_HOW_FAR) + op(AND, DUP) + const1u(0) + op(NE), Jump(BRA, "known"),
        Jump(SKIP, "end"), Label("known"), const1u(1) + op(MINUS) + probed + op(PLUS), Label("end"),
    )  # fmt: skip
    rules = rule(DEF_CFA, register(RSP) + pushed + op(PLUS)) + rule(IS_VALUE, ip, RIP)
    return section(start, size, rules, signal_frame=True)


def steps_of(insns: Sequence[Instruction], copies: Sequence[int]) -> dict[int, int]:
    """The table's bytes for the copies of instructions in a detour: step by offset. `copies`: where each copy begins."""
    steps = {}
    for insn, copy in zip(insns, copies, strict=True):
        for offset, words, executed in _boundaries(insn):
            behind = (insn.end if executed else insn.address) - insns[0].address
            steps[copy + offset] = step(behind) | words << _WORDS_AT
    return steps


def step(behind: int, skipped: bool = False) -> int:
    """At an instruction that is executed as what stands `behind` bytes behind the probed one. `skipped`: below the red zone."""
    return behind + 1 | skipped * _SKIPPED


def _boundaries(insn: Instruction) -> Iterator[tuple[int, int, bool]]:
    """Instructions of a copy that `relocate.expand` has made: offset, words on the stack, whether it has been executed."""
    yield 0, 0, False
    at = 0
    if insn.flow is Flow.INDIRECT_CALL and not insn.in_register:
        yield insn.length, 1, False
        yield insn.length + 3, 2, False
        at = insn.length + 8
        yield at, 0, False
    if insn.flow in (Flow.CALL, Flow.INDIRECT_CALL):
        yield at + 6, 1, False
    if insn.flow in (Flow.SYSCALL, Flow.LOOP, Flow.COUNT):
        yield insn.length, 0, True
