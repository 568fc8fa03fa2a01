"""Unwinding from copies of probed instructions, and from the routines of detours, to the probed code. Bytes in, bytes out.

For copies: one section describes a page of slots or detours. In a slot, the offset tells what has been executed, and the last
word points to the record, which contains the address. A detour may contain several instructions, and calls that push return
addresses; so a table for the page has a byte for each byte of code: a *step*, or 0 where no instruction begins.

For routines: CFI directives, as from a signal's frame. The CFA is the interrupted code's stack pointer. Its instruction pointer
is first found through the kprobe's record, which a word on the stack leads to. Its other registers are unchanged at first, and
then in a pt_regs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ftrace.hit.x86_64.frames import (
    AND,
    BRA,
    DEF_CFA,
    DEREF,
    DROP,
    DUP,
    EQ,
    GE,
    IN_MEMORY,
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
    escaped,
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
"""The size of a slot in bytes; detours have a multiple of it."""
_RED_ZONE, _WORD = 128, 8

# A step: distance of the instruction from the probed one, plus 1; words on the stack; whether the red zone is skipped.
_HOW_FAR, _WORDS_AT, _SKIPPED = 0x1F, 5, 0x80


def _unit() -> bytes:
    """The start of the slot, or of the 64-byte unit of a detour."""
    return register(RIP) + const1s(-_UNIT) + op(AND)


def _is_at(offset: int) -> bytes:
    """Replaces the offset on top of the stack by whether it is `offset`."""
    return const1u(offset) + op(EQ)


def slot_section(start: int, size: int, detour: int, record: int, fields: tuple[int, int]) -> bytes:
    """An .eh_frame section for the slots at `start` (address, bytes).

    `detour`, `record`: offsets in a slot of its detour and of its record's address. `fields`: offsets in a record of address
    and length. Copies begin at multiples of 16; code after a copy runs once the copy has been executed.
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

    `units`: address of a table with a byte for each 64 bytes of code: how many such units of the same detour precede it. The
    first unit holds a record's address at offset `record`; the record holds the probed address at offset `address`.
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
    """The steps of a detour, by offset. `copies`: the offset of each copied instruction."""
    steps = {}
    for insn, copy in zip(insns, copies, strict=True):
        for offset, words, executed in _boundaries(insn):
            distance = (insn.end if executed else insn.address) - insns[0].address
            steps[copy + offset] = step(distance) | words << _WORDS_AT
    return steps


def step(distance: int, skipped: bool = False) -> int:
    """The step of a copy whose original is `distance` bytes after the probed one. `skipped`: sp is below the red zone."""
    return distance + 1 | skipped * _SKIPPED


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


REGISTERS = {
    "r15": 0, "r14": 8, "r13": 16, "r12": 24, "rbp": 32, "rbx": 40, "r11": 48, "r10": 56, "r9": 64, "r8": 72, "rax": 80,
    "rcx": 88, "rdx": 96, "rsi": 104, "rdi": 112,
}  # fmt: skip
"""Offsets of the general registers in a pt_regs."""
_IP, _SP = 128, 152
_NUMBERS = {
    "rax": 0, "rdx": 1, "rcx": 2, "rbx": 3, "rsi": 4, "rdi": 5, "rbp": 6,
    **{f"r{n}": n for n in range(8, 16)},
}  # fmt: skip
"""DWARF's numbers of registers."""
_RBX = _NUMBERS["rbx"]


def head(pushed: int) -> str:
    """The start of a routine that is entered with the stack pointer `pushed` bytes below the interrupted code's."""
    return f"    .cfi_startproc\n    .cfi_signal_frame\n    .cfi_def_cfa %rsp, {pushed}"


def ip_by_record(below: int, address: int, unit: int = 0, record: int = 0) -> str:
    """The instruction pointer is in the kprobe's record at `address`.

    The record's address is the word `below` bytes below the CFA. If `unit` is given, that word points into a code block that
    is aligned to `unit` bytes, and the record's address is at offset `record` of the block.
    """
    found = const1u(below) + op(MINUS, DEREF) + (const1s(-unit) + op(AND) + field(record) if unit else b"")
    return _escape(rule(IS_VALUE, found + field(address), RIP))


def saved(below: int) -> str:
    """All general registers are in a pt_regs, `below` bytes below the CFA."""
    return "\n".join(f"    .cfi_offset %{name}, {offset - below}" for name, offset in REGISTERS.items())


def unsaved(*but: str) -> str:
    """All general registers but `but` have been restored."""
    return "\n".join(f"    .cfi_same_value %{name}" for name in REGISTERS if name not in but)


def by_regs() -> str:
    """All registers are in the pt_regs that rbx points to."""
    rules = [rule(DEF_CFA, register(_RBX, _SP) + op(DEREF))]
    rules += [rule(IN_MEMORY, register(_RBX, to), _NUMBERS[name]) for name, to in REGISTERS.items()]
    return "\n".join(map(_escape, [*rules, rule(IN_MEMORY, register(_RBX, _IP), RIP)]))


def _escape(described: bytes) -> str:
    return f"    .cfi_escape {escaped(described)}"
