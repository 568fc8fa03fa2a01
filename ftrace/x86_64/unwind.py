"""The frame description of stubs for unwinders: one for all stubs of a module. Bytes in, bytes out.

While a hooked body runs, its return slot holds the stub's address and the real one is on a shadow stack. The description
finds it there by a DWARF expression: the node whose frame is the slot and whose stub is this one, over all tasks. Two
things are unusual. A stub's frame has no memory of its own, so its CFA would equal the body's, and libgcc takes equal
CFAs for one frame: it is one byte higher here, and rsp has a rule of its own. And all stubs share one description, which
determines the half of a stub that a frame is in by the low bits of rip:

    offset < 59, >= 104    entry: the return address is on the stack              CFA = rsp + 8
    offset 59..103         the parent's address is in the node                     CFA = rsp + 1

For stubs after a prologue (mcount) the entry is inside the function: CFA = rbp + 16. Where tail calls have put several nodes
into one slot, the oldest has the real parent, and one frame represents all their stubs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftrace.x86_64.frames import (
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
    LT,
    MINUS,
    NE,
    PLUS,
    PLUS_UCONST,
    RBP,
    RIP,
    RSP,
    SKIP,
    SWAP,
    Jump,
    Label,
    const1s,
    const1u,
    const4u,
    const8u,
    field,
    joined,
    op,
    pick,
    register,
    rule,
    section,
    uleb,
)
from ftrace.x86_64.stubs import RETURN_POINT, STUB_SIZE

HOOKED_FROM, HOOKED_TO = 59, 104
_TAIL_CALL = 1
"""In Node.frame: there is an older node of the same frame (ftrace.hit.rethook)."""
_SLOT = 0x7FFF_FFFF_FFFF_FFF8
"""What of Node.frame + 7 is the address of the slot: without the low bits, and without ftrace.hit.parking.PARKED."""


def _is_hooked(hooked_to: int) -> bytes:
    """1 if the frame is in the second half of its stub, else 0."""
    offset = register(RIP) + const1u(STUB_SIZE - 1) + op(AND)
    return offset + op(DUP) + const1u(HOOKED_FROM) + op(GE, SWAP) + const1u(hooked_to) + op(LT, AND)


def cfa(after_prologue: bool = False, hooked_to: int = HOOKED_TO) -> bytes:
    """Where the frame ends; see above."""
    before = register(RBP) + op(PLUS_UCONST, 16) if after_prologue else register(RSP) + op(PLUS_UCONST, 8)
    hooked = register(RSP) + op(PLUS_UCONST, 1)
    is_hooked = _is_hooked(hooked_to)
    return joined(is_hooked, Jump(BRA, "hooked"), before, Jump(SKIP, "end"), Label("hooked"), hooked, Label("end"))


def caller_rsp(hooked_to: int = HOOKED_TO) -> bytes:
    """From the CFA on the stack: itself, or one less."""
    return _is_hooked(hooked_to) + op(MINUS)


def caller_rbp() -> bytes:
    """From the CFA on the stack, for a stub after a prologue: the saved rbp, or rbp itself."""
    return joined(
        _is_hooked(HOOKED_TO), Jump(BRA, "hooked"), register(RBP) + op(DEREF), Jump(SKIP, "end"),
        Label("hooked"), register(RBP), Label("end"),
    )  # fmt: skip


def return_address_place(
    slab: int, stride: int, node_size: int, fields: Mapping[str, int], hooked_to: int = HOOKED_TO
) -> bytes:
    """From the CFA on the stack: where the return address is stored. `fields`: TOP, BOTTOM of Task, FRAME, STUB, PARENT."""
    this_stub = register(RIP) + const1s(-STUB_SIZE) + op(AND, PLUS_UCONST, RETURN_POINT)
    frame = op(DUP) + field(fields["FRAME"])
    older = const1u(node_size) + op(MINUS)
    return joined(
        _is_hooked(hooked_to), Jump(BRA, "hooked"),
        const1u(8) + op(MINUS), Jump(SKIP, "end"),
        Label("hooked"),
        # The CFA stays at the bottom: libgcc cannot pick the last element of a stack.
        op(DUP) + const1u(9) + op(MINUS) + this_stub + const8u(slab),
        *_search(frame, older, stride, fields),
        # No task has it. This unclaimed task's own zero word means "no caller".
        op(PLUS_UCONST) + uleb(fields["BOTTOM"]), Jump(SKIP, "end"),
        Label("found"),
        frame + const1u(_TAIL_CALL) + op(AND) + const1u(0) + op(EQ), Jump(BRA, "oldest"),
        older, Jump(SKIP, "found"),
        Label("oldest"),
        op(PLUS_UCONST) + uleb(fields["PARENT"]),
        Label("end"),
    )  # fmt: skip


def _search(frame: bytes, older: bytes, stride: int, fields: Mapping[str, int]) -> tuple[bytes | Jump | Label, ...]:
    """[slot, stub, task] -> [slot, stub, task, node] at "found", or the unclaimed task after the last one."""
    matches = frame + op(PLUS_UCONST, 7) + const8u(_SLOT) + op(AND) + pick(4) + op(EQ)
    matches += pick(1) + field(fields["STUB"]) + pick(4) + op(EQ, AND)
    return (
        Label("task"),
        op(DUP) + field(fields["TOP"]),
        Label("node"),
        matches, Jump(BRA, "found"),
        op(DUP) + pick(2) + field(fields["BOTTOM"]) + op(EQ), Jump(BRA, "next task"),
        older, Jump(SKIP, "node"),
        Label("next task"),
        op(DROP) + const4u(stride) + op(PLUS),
        op(DUP) + field(fields["BOTTOM"]) + const1u(0) + op(NE), Jump(BRA, "task"),
    )  # fmt: skip


def frame_section(
    start: int, size: int, place: bytes, after_prologue: bool = False, hooked_to: int = HOOKED_TO
) -> bytes:
    """An .eh_frame section with one description, for the stubs at `start` (address, bytes); ends with its terminator."""
    rules = rule(DEF_CFA, cfa(after_prologue, hooked_to)) + rule(IS_VALUE, caller_rsp(hooked_to), RSP)
    rules += rule(IS_VALUE, caller_rbp(), RBP) if after_prologue else b""
    return section(start, size, rules + rule(IN_MEMORY, place, RIP))
