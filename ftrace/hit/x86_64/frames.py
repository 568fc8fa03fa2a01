"""Frame descriptions for code without compiler-made ones: DWARF expressions and sections. Bytes in, bytes out.

One description is for all stubs of a module. While a hooked body runs, its return slot holds the stub's address and the real
one is on a shadow stack. The description finds it there by a DWARF expression: the node whose frame is the slot and whose stub
is this one, over all tasks; of several, the one that was made last (ftrace.hit.made). Two things are unusual. A stub's frame has
no memory of its own, so its CFA would equal the body's, and libgcc takes equal CFAs for one frame: it is one byte higher here,
and rsp has a rule of its own. And all stubs share one description, which determines the half of a stub that a frame is in by the
low bits of rip:

    offset < 59, >= 109    entry: the return address is on the stack              CFA = rsp + 8
    offset 59..108         the parent's address is in the node                     CFA = rsp + 1

For stubs after a prologue (mcount) the entry is inside the function: CFA = rbp + 16. Where tail calls have put several nodes
into one slot, the oldest has the real parent, and one frame represents all their stubs.

The thread that has made the call may end meanwhile, if another one runs it by now: it puts the real address into the slot
(ftrace.hit.ended_threads.unhook). libgcc then still uses this description, but reads rip from the slot anew. So an rip that is in
no stub means the second half, and a call without a node has its address in the slot.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ftrace.hit.x86_64.stubs import RETURN_POINT, STUB_SIZE

RSP, RBP, RIP = 7, 6, 16
"""Numbers of registers."""
DEREF, DUP, DROP, OVER, SWAP, ROT, AND, MINUS, MUL = 0x06, 0x12, 0x13, 0x14, 0x16, 0x17, 0x1A, 0x1C, 0x1E
OR, PLUS, PLUS_UCONST, SHR, BRA, EQ, GE, LE, LT, NE, SKIP = (
    0x21,
    0x22,
    0x23,
    0x25,
    0x28,
    0x29,
    0x2A,
    0x2C,
    0x2D,
    0x2E,
    0x2F,
)
"""Operations."""
DEF_CFA, IN_MEMORY, IS_VALUE = b"\x0f", b"\x10", b"\x16"
"""Rules whose operand is an expression, which finds the CFA on its stack: the CFA itself; a register is where it says, or what
it says."""
_DEREF_SIZE = 0x94


def op(*codes: int) -> bytes:
    """Operations without operands, or with operands of a byte."""
    return bytes(codes)


def const1u(value: int) -> bytes:
    """Push a byte."""
    return b"\x08" + bytes([value])


def const1s(value: int) -> bytes:
    """Push a signed byte."""
    return b"\x09" + struct.pack("b", value)


def const4u(value: int) -> bytes:
    """Push four bytes."""
    return b"\x0c" + struct.pack("<I", value)


def const8u(value: int) -> bytes:
    """Push eight bytes."""
    return b"\x0e" + struct.pack("<Q", value)


def pick(depth: int) -> bytes:
    """Push a copy of the value `depth` below the top."""
    return b"\x15" + bytes([depth])


def uleb(value: int) -> bytes:
    """A LEB128 number."""
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def byte() -> bytes:
    """Replace the address on top by the byte there."""
    return bytes([_DEREF_SIZE, 1])


def word() -> bytes:
    """Replace the address on top by the 4-byte word there."""
    return bytes([_DEREF_SIZE, 4])


def field(offset: int) -> bytes:
    """The 8-byte field of the record whose address is on top."""
    return op(PLUS_UCONST) + uleb(offset) + op(DEREF)


def sleb(value: int) -> bytes:
    """A signed LEB128 number, not negative."""
    coded = uleb(value)
    return coded if coded[-1] < 0x40 else coded[:-1] + bytes([coded[-1] | 0x80, 0])


def register(number: int, offset: int = 0) -> bytes:
    """Push a register plus an offset of some bytes."""
    return bytes([0x70 + number]) + sleb(offset)


class Label(NamedTuple):
    """A place in an expression."""

    name: str


class Jump(NamedTuple):
    """DW_OP_bra or DW_OP_skip to a label."""

    operation: int
    to: str


_JUMP_SIZE = 3


def joined(*parts: bytes | Label | Jump) -> bytes:
    """An expression with its jumps filled in: 2 bytes, counted from the end of the jump."""
    places, at = dict[str, int](), 0
    for part in parts:
        if isinstance(part, Label):
            places[part.name] = at
        at += _size(part)
    code = b""
    for part in parts:
        if isinstance(part, Jump):
            code += struct.pack("<Bh", part.operation, places[part.to] - len(code) - _JUMP_SIZE)
        elif isinstance(part, bytes):
            code += part
    return code


def _size(part: bytes | Label | Jump) -> int:
    if isinstance(part, bytes):
        return len(part)
    return _JUMP_SIZE if isinstance(part, Jump) else 0


def rule(kind: bytes, expression: bytes, of: int | None = None) -> bytes:
    """A rule for the CFA, or for the register `of`."""
    return kind + (b"" if of is None else uleb(of)) + uleb(len(expression)) + expression


def escaped(described: bytes) -> str:
    """A rule as the operands of `.cfi_escape`."""
    return ", ".join(map(str, described))


def section(start: int, size: int, rules: bytes, signal_frame: bool = False) -> bytes:
    """An .eh_frame section with one description, for the code at `start` (address, bytes); ends with its terminator.

    Without `rules` the code leaves the stack as a call has made it. `signal_frame`: it was entered by a jump, not by a call.
    """
    augmentation = b"zRS\x00" if signal_frame else b"zR\x00"
    cie_body = struct.pack("<IB", 0, 1) + augmentation + b"\x01\x78\x10" + b"\x01\x00"
    cie_body += b"\x0c\x07\x08\x90\x01"  # def_cfa rsp+8; rip at cfa-8
    cie = _entry(cie_body)
    fde = _entry(struct.pack("<IQQB", len(cie) + 4, start, size, 0) + rules)
    return cie + fde + bytes(4)


def description_in(section: bytes) -> int:
    """The offset of the description in a `section`, after what all have in common."""
    (size,) = struct.unpack_from("<I", section)
    return int(size) + 4


def _entry(body: bytes) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    return struct.pack("<I", len(body)) + body


HOOKED_FROM, HOOKED_TO = 59, 109
_TAIL_CALL = 1
"""Subtracted from Node.frame: there is an older node of the same frame (ftrace.hit.nodes)."""
_SLOT = 0x7FFF_FFFF_FFFF_FFF8
"""The bits of Node.frame + 7 that are the slot's address: all but the low ones and ftrace.hit.parking.PARKED."""


class Stubs(NamedTuple):
    """What one description is for: stubs at an address, `size` bytes of them, and where the second half ends in each."""

    start: int
    size: int
    after_prologue: bool = False
    hooked_to: int = HOOKED_TO
    above: int = 1
    """How far the CFA is above rsp in the second half: 0 for libunwind, which takes the CFA for the caller's rsp."""

    def contain(self) -> bytes:
        """1 if the address on the stack is in one of them, else 0."""
        return op(DUP) + const8u(self.start) + op(GE, SWAP) + const8u(self.start + self.size) + op(LT, AND)

    def is_hooked(self) -> bytes:
        """1 if the frame is in the second half of its stub, else 0."""
        offset = register(RIP) + const1u(STUB_SIZE - 1) + op(AND)
        in_second_half = offset + op(DUP) + const1u(HOOKED_FROM) + op(GE, SWAP) + const1u(self.hooked_to) + op(LT, AND)
        return in_second_half + register(RIP) + self.contain() + const1u(0) + op(EQ, OR)


def cfa(stubs: Stubs) -> bytes:
    """The expression for the canonical frame address; see above."""
    before = register(RBP) + op(PLUS_UCONST, 16) if stubs.after_prologue else register(RSP) + op(PLUS_UCONST, 8)
    hooked = register(RSP) + op(PLUS_UCONST, stubs.above)
    return joined(
        stubs.is_hooked(), Jump(BRA, "hooked"), before, Jump(SKIP, "end"), Label("hooked"), hooked, Label("end")
    )


def caller_rsp(stubs: Stubs) -> bytes:
    """From the CFA on the stack: itself, or one less."""
    return stubs.is_hooked() + op(MINUS)


def caller_rbp(stubs: Stubs) -> bytes:
    """From the CFA on the stack, for a stub after a prologue: the saved rbp, or rbp itself."""
    return joined(
        stubs.is_hooked(), Jump(BRA, "hooked"), register(RBP) + op(DEREF), Jump(SKIP, "end"),
        Label("hooked"), register(RBP), Label("end"),
    )  # fmt: skip


class Records(NamedTuple):
    """Where the shadow stacks are: the address of the tasks, the bytes from one to the next, those of a node, offsets of fields.

    `fields`: TOP, BOTTOM and STATE of Task, FRAME, STUB, PARENT and MADE of Node. `sentinel`: the first task's, which is no call.
    """

    slab: int
    stride: int
    node: int
    fields: Mapping[str, int]
    sentinel: int


def return_address_place(stubs: Stubs, records: Records) -> bytes:
    """From the CFA on the stack: where the return address is stored."""
    this_stub = register(RIP) + const1s(-STUB_SIZE) + op(AND, PLUS_UCONST, RETURN_POINT)
    frame = op(DUP) + field(records.fields["FRAME"])
    older = const1u(records.node) + op(MINUS)
    return joined(
        stubs.is_hooked(), Jump(BRA, "hooked"),
        const1u(8) + op(MINUS), Jump(SKIP, "end"),
        Label("hooked"),
        # The CFA stays at the bottom: libgcc cannot pick the last element of a stack.
        op(DUP) + const1u(8 + stubs.above) + op(MINUS) + this_stub + const8u(records.sentinel) + const8u(records.slab),
        *_search(frame, older, records),
        op(DROP, DUP) + const8u(records.sentinel) + op(NE), Jump(BRA, "found"),
        pick(2) + op(DEREF) + stubs.contain(), Jump(BRA, "oldest"),  # no caller: the sentinel's parent is 0
        pick(2), Jump(SKIP, "end"),
        Label("found"),
        frame + const1u(_TAIL_CALL) + op(AND) + const1u(0) + op(EQ), Jump(BRA, "oldest"),
        older, Jump(SKIP, "found"),
        Label("oldest"),
        op(PLUS_UCONST) + uleb(records.fields["PARENT"]),
        Label("end"),
    )  # fmt: skip


def _made(fields: Mapping[str, int]) -> bytes:
    """Replace the node on top by a number, not negative, that is greater for one that was made later (ftrace.hit.made)."""
    return field(fields["MADE"]) + const1u(1) + op(SHR)


def _search(frame: bytes, older: bytes, records: Records) -> tuple[bytes | Jump | Label, ...]:
    """[slot, stub, sentinel, task] -> [slot, stub, the node that was made last or the sentinel, the task after the last one].

    A record that is being claimed for the first time has no bottom yet, and no call: those after it may have.
    """
    fields = records.fields
    matches = frame + op(PLUS_UCONST, 7) + const8u(_SLOT) + op(AND) + pick(5) + op(EQ)
    matches += pick(1) + field(fields["STUB"]) + pick(5) + op(EQ, AND)
    return (
        Jump(SKIP, "task"),
        Label("node"),
        matches + const1u(0) + op(EQ), Jump(BRA, "not later"),
        op(DUP) + _made(fields) + pick(3) + _made(fields) + op(LE), Jump(BRA, "not later"),
        op(ROT, SWAP, DROP, OVER),
        Label("not later"),
        op(DUP) + pick(2) + field(fields["BOTTOM"]) + op(EQ), Jump(BRA, "drop"),
        older, Jump(SKIP, "node"),
        Label("drop"),
        op(DROP),
        Label("next task"),
        const4u(records.stride) + op(PLUS),
        Label("task"),
        op(DUP) + field(fields["TOP"]) + pick(1) + field(fields["BOTTOM"]), Jump(BRA, "node"),
        op(DROP, DUP, PLUS_UCONST) + uleb(fields["STATE"]) + word(), Jump(BRA, "next task"),
    )  # fmt: skip


def stub_section(stubs: Stubs, place: bytes) -> bytes:
    """An .eh_frame section with one description, for the stubs; ends with its terminator. `place`: return_address_place."""
    rules = rule(DEF_CFA, cfa(stubs)) + (rule(IS_VALUE, caller_rsp(stubs), RSP) if stubs.above else b"")
    rules += rule(IS_VALUE, caller_rbp(stubs), RBP) if stubs.after_prologue else b""
    return section(stubs.start, stubs.size, rules + rule(IN_MEMORY, place, RIP))
