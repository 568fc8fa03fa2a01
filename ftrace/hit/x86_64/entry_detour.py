"""Detours: the code that the patched entry of a function without a stub leads to. Bytes in, bytes out.

In code that was not compiled here no register is free, at an entry and at a return (ftrace.hit.x86_64.preserving_stub). The
detour of a function belongs to it for as long as its code is there. It has 256 bytes, and is aligned to them (a test compares
the listing):

    registers  r11 = task, r10 = the probe list, between `save` and `restore`; otherwise all are the program's, flags too
    stack      rsp -> the return slot at 8 (restored), 34, 64, 193
               rsp+32 -> the return slot from 69 to 162: rax, r10, r11 and the flags below it

      0  .quad returning               <- the return point of the function's preserving stub, by which nodes name it
      8  mov 24(%rsp), %eax            <- slow: no task yet, in tracing code already, or nothing that the fast path serves
     12  add $127, %al                 <- OF again, from al
     14  sahf
     15  mov (%rsp), %rax
     19  mov 8(%rsp), %r10
     24  mov 16(%rsp), %r11
     29  lea 32(%rsp), %rsp
     34  call *entry(%rip)             <- ftrace_entry_preserving_all, which continues at 40 or, over it, at 45
     40  jmp hooked
     45  jmp 193
     64  lea -32(%rsp), %rsp           <- the patch leads here: save
     69  mov %rax, (%rsp)
     73  mov %r10, 8(%rsp)
     78  mov %r11, 16(%rsp)
     83  lahf
     84  seto %al
     87  mov %eax, 24(%rsp)
     91  mov %fs:TASK, %r11
    100  test %r11, %r11
    103  je 8
    105  cmpl $0, REC(%r11)
    110  jne 8
    112  movl $FAST, REC(%r11)
    120  mov slot(%rip), %r10          <- the probe list
    127  mov (%rsp), %rax
    131  call *(%r10)                  <- its entry trampoline (ftrace.hit.x86_64.preserving_trampolines); ZF says whether to hook
    134  jne 167
    136  mov 24(%rsp), %eax            <- restore
    140  add $127, %al
    142  sahf
    143  mov (%rsp), %rax
    147  mov 8(%rsp), %r10
    152  mov 16(%rsp), %r11
    157  lea 32(%rsp), %rsp
    162  jmp hooked                    <- the stub drops the return address and calls the body
    167  mov 24(%rsp), %eax            <- restore
    171  add $127, %al
    173  sahf
    174  mov (%rsp), %rax
    178  mov 8(%rsp), %r10
    183  mov 16(%rsp), %r11
    188  lea 32(%rsp), %rsp

From 193 on it is the body: copies of the instructions that the patch covers, and a jump back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ftrace.hit.x86_64.frames import (
    AND,
    DEF_CFA,
    GE,
    LT,
    MUL,
    OR,
    PLUS,
    PLUS_UCONST,
    RIP,
    RSP,
    const1u,
    op,
    register,
    rule,
    section,
)
from ftrace.hit.x86_64.preserving_stub import DROP_RETURN_PRESERVING
from ftrace.hit.x86_64.stubs import RETURN_POINT
from sandbox.x86_64.encoding import INT3, jump
from sandbox.x86_64.relocate import expand

if TYPE_CHECKING:
    from sandbox.x86_64.instruction import Instruction

DETOUR_SIZE = 256
ENTRY, BODY = 64, 193
"""Offsets: where the patch leads, and where calls that are not hooked continue."""
SLOW, DECIDED, CALLED = 8, 40, 134
"""Offsets: of the slow path, after its call, and after that of the entry trampoline."""
STEP_OVER = 5
KEPT = 32
"""Bytes below the return slot in which the registers are."""
ROUTINE, HOOKED_SLOW, _TO_BODY, SLOT_AT, HOOKED = 36, 41, 46, 123, 163
"""Offsets of the displacements."""

_RESTORE = bytes.fromhex("8b442418 047f 9e 488b0424 4c8b542408 4c8b5c2410 488d642420")
_SAVE = bytes.fromhex("488d6424e0 48890424 4c89542408 4c895c2410 9f 0f90c0 89442418")
_LOWERED = ((SLOW, 34), (69, 162), (167, BODY))
"""Offsets between which the stack pointer is below the saved registers."""


def detour_template(task_offset: int, fast: int, rec: int) -> bytes:
    """A detour up to its body, for a process whose threads find their task at %fs:`task_offset` (bytes, signed).

    `fast` is what `rec`, a field of Task at this offset, holds during a hit on the fast path.
    """
    head = bytes(8) + _RESTORE + bytes.fromhex("ff1500000000 e900000000") + jump(_TO_BODY - 1, BODY)
    parts = [
        head.ljust(ENTRY, bytes([INT3])),
        _SAVE,
        bytes.fromhex("644c8b1c25") + task_offset.to_bytes(4, "little", signed=True),
        bytes.fromhex("4d85db"),
        bytes([0x74, (SLOW - 105) & 0xFF]),
        b"\x41\x83\x7b" + bytes([rec, 0]),
        bytes([0x75, (SLOW - 112) & 0xFF]),
        b"\x41\xc7\x43" + bytes([rec]) + fast.to_bytes(4, "little"),
        bytes.fromhex("4c8b1500000000 488b0424 41ff12"),
        bytes([0x75, 167 - 136]),
        _RESTORE,
        bytes.fromhex("e900000000"),
        _RESTORE,
    ]
    code = b"".join(parts)
    if len(code) != BODY:
        raise AssertionError(f"a detour whose body is at {len(code)}")
    return code


class EntryDetour(NamedTuple):
    """A detour's bytes and, by address, where the copy of each instruction is."""

    code: bytes
    copies: list[int]


def entry_detour(
    template: bytes, insns: Sequence[Instruction], where: int, stub: int, entry: int, slot: int
) -> EntryDetour:
    """The detour at `where` of a function that begins with `insns`, which a patch covers, and returns through `stub`.

    At `entry` lies the address of ftrace_entry_preserving_all, and at `slot` that of the function's probe list. Raises
    OverflowError if something is beyond 2 GB, ValueError for an instruction that cannot be moved, or too many of them.
    """
    code = bytearray(template)
    code[:8] = (stub + RETURN_POINT).to_bytes(8, "little")
    hooked = stub + DROP_RETURN_PRESERVING - 4 - where
    targets = (
        (ROUTINE, entry - 4 - where),
        (HOOKED_SLOW, hooked),
        (SLOT_AT, slot - 4 - where),
        (HOOKED, hooked),
    )
    for at, distance in targets:
        code[at : at + 4] = (distance - at).to_bytes(4, "little", signed=True)
    copies = []
    for insn in insns:
        copies.append(where + len(code))
        code += expand(insn, copies[-1])
    code += jump(where + len(code), insns[-1].end)
    if len(code) > DETOUR_SIZE:
        raise ValueError("the relocated instructions are too long for a detour")
    return EntryDetour(bytes(code.ljust(DETOUR_SIZE, bytes([INT3]))), copies)


def detour_section(start: int, size: int) -> bytes:
    """An .eh_frame section for the detours at `start` (address, bytes): all share one description, which tells by the low bits of

    rip how far down the stack is. Bodies are described as if they had not begun.
    """
    offset = register(RIP) + const1u(DETOUR_SIZE - 1) + op(AND)
    lowered = b""
    for low, high in _LOWERED:
        lowered += offset + const1u(low) + op(GE) + offset + const1u(high) + op(LT, AND)
    lowered += op(OR, OR) + const1u(KEPT) + op(MUL)
    cfa = lowered + register(RSP) + op(PLUS) + op(PLUS_UCONST, 8)
    return section(start, size, rule(DEF_CFA, cfa))
