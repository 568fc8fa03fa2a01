"""What unwinders need to know of the stubs: one frame description for all stubs of a module. Bytes in, bytes out.

While a hooked body runs, its return slot holds the stub's address and the real one is on a shadow stack. The description
finds it there by a DWARF expression: the node whose frame is the slot and whose stub is this one, over all tasks. Two
things are unusual. A stub's frame has no memory of its own, so its CFA would equal the body's, and libgcc takes equal
CFAs for one frame: it is one byte higher here, and rsp has a rule of its own. And all stubs share one description, which
tells by the low bits of rip in which half of a stub a frame is:

    offset < 59, >= 104    on the way in: the return address is on the stack       CFA = rsp + 8
    offset 59..103         the parent's address is in the node                     CFA = rsp + 1

For stubs behind a prologue (mcount) the way in is inside the function: CFA = rbp + 16. Where tail calls have put several
nodes into one slot, the oldest has the real parent, and one frame stands for all their stubs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ftrace.x86_64.stubs import RETURN_POINT, STUB_SIZE

HOOKED_FROM, HOOKED_TO = 59, 104
_TAIL_CALL = 1
"""In Node.frame: there is an older node of the same frame (ftrace.hit.rethook)."""
_RBP, _RSP, _RIP = 6, 7, 16

_DEREF, _DUP, _DROP, _SWAP, _AND, _MINUS, _PLUS = 0x06, 0x12, 0x13, 0x16, 0x1A, 0x1C, 0x22
_PLUS_UCONST, _BRA, _EQ, _GE, _LT, _NE, _SKIP = 0x23, 0x28, 0x29, 0x2A, 0x2D, 0x2E, 0x2F


def _op(*codes: int) -> bytes:
    return bytes(codes)


def _const1u(value: int) -> bytes:
    return b"\x08" + bytes([value])


def _const1s(value: int) -> bytes:
    return b"\x09" + struct.pack("b", value)


def _const4u(value: int) -> bytes:
    return b"\x0c" + struct.pack("<I", value)


def _const8u(value: int) -> bytes:
    return b"\x0e" + struct.pack("<Q", value)


def _pick(depth: int) -> bytes:
    return b"\x15" + bytes([depth])


def _uleb(value: int) -> bytes:
    result = b""
    while value > 0x7F:
        result += bytes([value & 0x7F | 0x80])
        value >>= 7
    return result + bytes([value])


def _field(offset: int) -> bytes:
    """The 8-byte field of the record whose address is on top."""
    return _op(_PLUS_UCONST) + _uleb(offset) + _op(_DEREF)


def _register(number: int) -> bytes:
    return bytes([0x70 + number, 0])


class _Label(NamedTuple):
    """A place in an expression."""

    name: str


class _Jump(NamedTuple):
    """DW_OP_bra or DW_OP_skip to a label."""

    operation: int
    to: str


_JUMP_SIZE = 3


def _joined(*parts: bytes | _Label | _Jump) -> bytes:
    """An expression with its jumps filled in: 2 bytes, counted from behind the jump."""
    places, at = dict[str, int](), 0
    for part in parts:
        if isinstance(part, _Label):
            places[part.name] = at
        at += _size(part)
    code = b""
    for part in parts:
        if isinstance(part, _Jump):
            code += struct.pack("<Bh", part.operation, places[part.to] - len(code) - _JUMP_SIZE)
        elif isinstance(part, bytes):
            code += part
    return code


def _size(part: bytes | _Label | _Jump) -> int:
    if isinstance(part, bytes):
        return len(part)
    return _JUMP_SIZE if isinstance(part, _Jump) else 0


def _is_hooked() -> bytes:
    """1 if the frame is in the second half of its stub, else 0."""
    offset = _register(_RIP) + _const1u(STUB_SIZE - 1) + _op(_AND)
    return offset + _op(_DUP) + _const1u(HOOKED_FROM) + _op(_GE, _SWAP) + _const1u(HOOKED_TO) + _op(_LT, _AND)


def cfa(after_prologue: bool = False) -> bytes:
    """Where the frame ends; see above."""
    before = _register(_RBP) + _op(_PLUS_UCONST, 16) if after_prologue else _register(_RSP) + _op(_PLUS_UCONST, 8)
    hooked = _register(_RSP) + _op(_PLUS_UCONST, 1)
    return _joined(
        _is_hooked(), _Jump(_BRA, "hooked"), before, _Jump(_SKIP, "end"), _Label("hooked"), hooked, _Label("end")
    )


def caller_rsp() -> bytes:
    """From the CFA on the stack: itself, or one less."""
    return _is_hooked() + _op(_MINUS)


def caller_rbp() -> bytes:
    """From the CFA on the stack, for a stub behind a prologue: what that has saved, or rbp itself."""
    return _joined(
        _is_hooked(), _Jump(_BRA, "hooked"), _register(_RBP) + _op(_DEREF), _Jump(_SKIP, "end"),
        _Label("hooked"), _register(_RBP), _Label("end"),
    )  # fmt: skip


def return_address_place(slab: int, stride: int, node_size: int, fields: Mapping[str, int]) -> bytes:
    """From the CFA on the stack: where the return address is stored. `fields`: TOP, BOTTOM of Task, FRAME, STUB, PARENT."""
    this_stub = _register(_RIP) + _const1s(-STUB_SIZE) + _op(_AND, _PLUS_UCONST, RETURN_POINT)
    # [slot, stub, task, node] -> is it the one?
    frame = _op(_DUP) + _field(fields["FRAME"])
    matches = frame + _op(_PLUS_UCONST, 7) + _const1s(-8) + _op(_AND) + _pick(4) + _op(_EQ)
    matches += _pick(1) + _field(fields["STUB"]) + _pick(4) + _op(_EQ, _AND)
    older = _const1u(node_size) + _op(_MINUS)
    return _joined(
        _is_hooked(), _Jump(_BRA, "hooked"),
        _const1u(8) + _op(_MINUS), _Jump(_SKIP, "end"),
        _Label("hooked"),
        # The CFA stays at the bottom: libgcc cannot pick the last element of a stack.
        _op(_DUP) + _const1u(9) + _op(_MINUS) + this_stub + _const8u(slab),
        _Label("task"),
        _op(_DUP) + _field(fields["TOP"]),
        _Label("node"),
        matches, _Jump(_BRA, "found"),
        _op(_DUP) + _pick(2) + _field(fields["BOTTOM"]) + _op(_EQ), _Jump(_BRA, "next task"),
        older, _Jump(_SKIP, "node"),
        _Label("next task"),
        _op(_DROP) + _const4u(stride) + _op(_PLUS),
        _op(_DUP) + _field(fields["BOTTOM"]) + _const1u(0) + _op(_NE), _Jump(_BRA, "task"),
        # Nobody has it. This unclaimed task's own zero word stands for "no caller".
        _op(_PLUS_UCONST) + _uleb(fields["BOTTOM"]), _Jump(_SKIP, "end"),
        _Label("found"),
        frame + _const1u(_TAIL_CALL) + _op(_AND) + _const1u(0) + _op(_EQ), _Jump(_BRA, "oldest"),
        older, _Jump(_SKIP, "found"),
        _Label("oldest"),
        _op(_PLUS_UCONST) + _uleb(fields["PARENT"]),
        _Label("end"),
    )  # fmt: skip


def frame_section(start: int, size: int, place: bytes, after_prologue: bool = False) -> bytes:
    """An .eh_frame section with one description, for the stubs at `start` (address, bytes); ends with its terminator."""
    rules = b"\x0f" + _block(cfa(after_prologue))
    rules += b"\x16" + bytes([_RSP]) + _block(caller_rsp())
    rules += b"\x16" + bytes([_RBP]) + _block(caller_rbp()) if after_prologue else b""
    rules += b"\x10" + bytes([_RIP]) + _block(place)
    return _section(start, size, rules)


def entrance_section(start: int, size: int) -> bytes:
    """The same for code that leaves the stack as a call has made it."""
    return _section(start, size, b"")


def _section(start: int, size: int, rules: bytes) -> bytes:
    augmentation = b"zR\x00"
    cie_body = struct.pack("<IB", 0, 1) + augmentation + b"\x01\x78\x10" + b"\x01\x00"
    cie_body += b"\x0c\x07\x08\x90\x01"  # def_cfa rsp+8; rip at cfa-8
    cie = _entry(cie_body)
    fde = _entry(struct.pack("<IQQB", len(cie) + 4, start, size, 0) + rules)
    return cie + fde + bytes(4)


def _block(expression: bytes) -> bytes:
    return _uleb(len(expression)) + expression


def _entry(body: bytes) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    return struct.pack("<I", len(body)) + body
