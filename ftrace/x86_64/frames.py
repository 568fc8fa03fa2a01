"""Frame descriptions for code without compiler-made ones: DWARF expressions and sections. Bytes in, bytes out."""

from __future__ import annotations

import struct
from typing import NamedTuple

RSP, RBP, RIP = 7, 6, 16
"""Numbers of registers."""
DEREF, DUP, DROP, SWAP, AND, MINUS, MUL, OR, PLUS = 0x06, 0x12, 0x13, 0x16, 0x1A, 0x1C, 0x1E, 0x21, 0x22
PLUS_UCONST, SHR, BRA, EQ, GE, LT, NE, SKIP = 0x23, 0x25, 0x28, 0x29, 0x2A, 0x2D, 0x2E, 0x2F
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
    """Push a copy of what is `depth` below the top."""
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
    """An expression with its jumps filled in: 2 bytes, counted from behind the jump."""
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

    Without `rules` the code leaves the stack as a call has made it. `signal_frame`: it was not called, but came to.
    """
    augmentation = b"zRS\x00" if signal_frame else b"zR\x00"
    cie_body = struct.pack("<IB", 0, 1) + augmentation + b"\x01\x78\x10" + b"\x01\x00"
    cie_body += b"\x0c\x07\x08\x90\x01"  # def_cfa rsp+8; rip at cfa-8
    cie = _entry(cie_body)
    fde = _entry(struct.pack("<IQQB", len(cie) + 4, start, size, 0) + rules)
    return cie + fde + bytes(4)


def _entry(body: bytes) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    return struct.pack("<I", len(body)) + body
