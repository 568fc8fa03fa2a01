"""What unwinders need to know of the stubs: one frame description for all stubs of a module. Bytes in, bytes out.

While a hooked body runs, its return slot holds the stub's address and the real one is on a shadow stack. The description
finds it there by a DWARF expression: the node whose frame is the slot and whose stub is this one, over all tasks. Two
things are unusual. A stub's frame has no memory of its own, so its CFA would equal the body's, and libgcc takes equal
CFAs for one frame: it is one byte higher here, and rsp has a rule of its own. And all stubs share one description, which
tells by the low bits of rip in which half of a stub a frame is:

    offset < 59, >= 104    on the way in: the return address is on the stack       CFA = rsp + 8
    offset 59..103         the parent's address is in the node                     CFA = rsp + 1
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ftrace.x86_64.stubs import RETURN_POINT, STUB_SIZE

HOOKED_FROM, HOOKED_TO = 59, 104
_RSP, _RIP = 7, 16

_DEREF, _DUP, _DROP, _SWAP, _AND, _MINUS, _MUL, _PLUS = 0x06, 0x12, 0x13, 0x16, 0x1A, 0x1C, 0x1E, 0x22
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


def _jump(operation: int, distance: int) -> bytes:
    return bytes([operation]) + struct.pack("<h", distance)


def _is_hooked() -> bytes:
    """1 if the frame is in the second half of its stub, else 0."""
    offset = _register(_RIP) + _const1u(STUB_SIZE - 1) + _op(_AND)
    return offset + _op(_DUP) + _const1u(HOOKED_FROM) + _op(_GE, _SWAP) + _const1u(HOOKED_TO) + _op(_LT, _AND)


def cfa() -> bytes:
    """rsp + 8, or rsp + 1 in the second half."""
    return _register(_RSP) + _is_hooked() + _const1s(-7) + _op(_MUL, _PLUS_UCONST, 8, _PLUS)


def caller_rsp() -> bytes:
    """From the CFA on the stack: itself, or one less."""
    return _is_hooked() + _op(_MINUS)


def return_address_place(slab: int, stride: int, node_size: int, fields: Mapping[str, int]) -> bytes:
    """From the CFA on the stack: where the return address is stored. `fields`: TOP, BOTTOM of Task, FRAME, STUB, PARENT."""
    this_stub = _register(_RIP) + _const1s(-STUB_SIZE) + _op(_AND, _PLUS_UCONST, RETURN_POINT)
    # [slot, stub, task, node] -> is it the one?
    matches = (
        _op(_DUP) + _field(fields["FRAME"]) + _op(_PLUS_UCONST, 7) + _const1s(-8) + _op(_AND) + _pick(4) + _op(_EQ)
    )
    matches += _pick(1) + _field(fields["STUB"]) + _pick(4) + _op(_EQ, _AND)
    at_bottom = _op(_DUP) + _pick(2) + _field(fields["BOTTOM"]) + _op(_EQ)
    older = _const1u(node_size) + _op(_MINUS)
    next_task = _op(_DROP) + _const4u(stride) + _op(_PLUS)
    is_claimed = _op(_DUP) + _field(fields["BOTTOM"]) + _const1u(0) + _op(_NE)

    newest = _op(_DUP) + _field(fields["TOP"])
    inner = matches + _jump(_BRA, 0) + at_bottom + _jump(_BRA, 0) + older + _jump(_SKIP, 0)
    tail = next_task + is_claimed + _jump(_BRA, 0)
    # Distances count from behind the jump.
    to_found = len(inner) - len(matches) - 3 + len(tail) + len(_unclaimed(fields))
    to_next = len(older) + 3
    inner = matches + _jump(_BRA, to_found) + at_bottom + _jump(_BRA, to_next) + older + _jump(_SKIP, -len(inner))
    tail = next_task + is_claimed + _jump(_BRA, -(len(newest) + len(inner) + len(tail)))
    search = newest + inner + tail + _unclaimed(fields) + _op(_PLUS_UCONST) + _uleb(fields["PARENT"])

    # The CFA stays at the bottom: libgcc cannot pick the last element of a stack.
    start = _op(_DUP) + _const1u(9) + _op(_MINUS) + this_stub + _const8u(slab)
    on_stack = _const1u(8) + _op(_MINUS) + _jump(_SKIP, len(start) + len(search))
    return _is_hooked() + _jump(_BRA, len(on_stack)) + on_stack + start + search


def _unclaimed(fields: Mapping[str, int]) -> bytes:
    """[slot, stub, task]: nobody has it. The task's own zero word stands for "no caller"."""
    return _op(_PLUS_UCONST) + _uleb(fields["BOTTOM"]) + _jump(_SKIP, 1 + len(_uleb(fields["PARENT"])))


def frame_section(start: int, size: int, place: bytes) -> bytes:
    """An .eh_frame section with one description, for the stubs at `start` (address, bytes); ends with its terminator."""
    augmentation = b"zR\x00"
    cie_body = struct.pack("<IB", 0, 1) + augmentation + b"\x01\x78\x10" + b"\x01\x00"
    cie_body += b"\x0c\x07\x08\x90\x01"  # def_cfa rsp+8; rip at cfa-8
    cie = _entry(cie_body)
    rules = b"\x0f" + _block(cfa())
    rules += b"\x16" + bytes([_RSP]) + _block(caller_rsp())
    rules += b"\x10" + bytes([_RIP]) + _block(place)
    fde = _entry(struct.pack("<IQQB", len(cie) + 4, start, size, 0) + rules)
    return cie + fde + bytes(4)


def _block(expression: bytes) -> bytes:
    return _uleb(len(expression)) + expression


def _entry(body: bytes) -> bytes:
    body += bytes(-(len(body) + 4) % 8)
    return struct.pack("<I", len(body)) + body
