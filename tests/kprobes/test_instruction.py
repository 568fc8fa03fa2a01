"""Decoding one instruction: against hand-assembled bytes, and against a library's unwind-free linear listing."""

from __future__ import annotations

import random

import pytest

from sandbox.x86_64.decoding import decoder
from sandbox.x86_64.instruction import Encoding, Flow, decode
from sandbox.x86_64.operand import MemoryOperand, Segment, memory_operand

AT = 0x40_0000


def decoded(code: str, at: int = AT):
    return decode(bytes.fromhex(code) + b"\x90" * 4, at)


@pytest.mark.parametrize(
    ("code", "length", "encoding", "opcode_map", "opcode"),
    [
        ("90", 1, Encoding.LEGACY, 0, 0x90),
        ("66 0f 1f 44 00 00", 6, Encoding.LEGACY, 1, 0x1F),
        ("4c 8d 1d 01 00 00 00", 7, Encoding.LEGACY, 0, 0x8D),
        ("f2 0f 38 f0 00", 5, Encoding.LEGACY, 2, 0xF0),
        ("66 0f 3a 0f c1 08", 6, Encoding.LEGACY, 3, 0x0F),
        ("c5 f9 6f c1", 4, Encoding.VEX, 1, 0x6F),
        ("c5 f9 70 c1 1b", 5, Encoding.VEX, 1, 0x70),
        ("c4 e2 79 18 05 00 00 00 00", 9, Encoding.VEX, 2, 0x18),
        ("62 f1 7c 48 10 05 00 00 00 00", 10, Encoding.EVEX, 1, 0x10),
        ("8f e9 78 12 c0", 5, Encoding.XOP, 9, 0x12),
        ("f3 0f 1e fa", 4, Encoding.LEGACY, 1, 0x1E),
    ],
)
def test_an_opcode_is_read_behind_its_prefixes(code, length, encoding, opcode_map, opcode):
    """KP-33"""
    insn = decoded(code)
    assert (insn.length, insn.encoding, insn.opcode_map, insn.opcode) == (length, encoding, opcode_map, opcode)


@pytest.mark.parametrize(
    ("code", "flow", "target"),
    [
        ("e8 10 00 00 00", Flow.CALL, AT + 0x15),
        ("e9 fb ff ff ff", Flow.JUMP, AT),
        ("eb fe", Flow.JUMP, AT),
        ("74 02", Flow.CONDITIONAL, AT + 4),
        ("0f 85 00 01 00 00", Flow.CONDITIONAL, AT + 0x106),
        ("e2 fe", Flow.LOOP, AT),
        ("67 e3 10", Flow.COUNT, AT + 0x13),
        ("ff d0", Flow.INDIRECT_CALL, None),
        ("ff 25 00 00 00 00", Flow.INDIRECT_JUMP, None),
        ("3e ff e0", Flow.INDIRECT_JUMP, None),
        ("48 2e e8 10 00 00 00", Flow.CALL, AT + 0x17),
        ("41 48 e8 10 00 00 00", Flow.CALL, AT + 0x17),
        ("f3 c3", Flow.RETURN, None),
        ("48 cb", Flow.FAR_RETURN, None),
        ("48 cf", Flow.FAR, None),
        ("0f 05", Flow.SYSCALL, None),
        ("cc", Flow.TRAP, None),
        ("0f 0b", Flow.TRAP, None),
        ("c7 f8 00 00 00 00", Flow.TRANSACTION, AT + 6),
        ("c5 f9 70 c1 1b", Flow.NEXT, None),
        ("c5 f8 77", Flow.NEXT, None),
        ("ff c0", Flow.NEXT, None),
    ],
)
def test_how_it_goes_on(code, flow, target):
    insn = decoded(code)
    assert (insn.flow, insn.target) == (flow, target)


@pytest.mark.parametrize(
    ("code", "target"),
    [
        ("48 8d 05 10 00 00 00", AT + 0x17),
        ("48 c7 05 10 00 00 00 01 00 00 00", AT + 0x1B),
        ("80 3d f8 ff ff ff 00", AT - 1),
        ("c5 fb 10 05 10 00 00 00", AT + 0x18),
        ("62 f1 7c 48 10 05 10 00 00 00", AT + 0x1A),
        ("67 48 8d 05 10 00 00 00", AT + 0x18),
        ("ff 15 10 00 00 00", AT + 0x16),
        ("48 8b 45 10", None),
        ("48 8b 04 25 10 00 00 00", None),
        ("0f 20 c0", None),
    ],
)
def test_rip_relative_operands(code, target):
    assert decoded(code).rip_target == target


def test_the_register_of_an_indirect_branch_has_its_rex_bit():
    assert decoded("41 ff d3").register == 11
    assert decoded("ff e4").register == 4


RAX, RCX, RSP, RBP, R9, R12, R13 = 0, 1, 4, 5, 9, 12, 13


@pytest.mark.parametrize(
    ("code", "operand"),
    [
        ("ff 10", MemoryOperand(RAX, None, 1, 0)),
        ("ff 54 24 08", MemoryOperand(RSP, None, 1, 8)),
        ("41 ff 54 24 08", MemoryOperand(R12, None, 1, 8)),
        ("ff 55 f8", MemoryOperand(RBP, None, 1, -8)),
        ("41 ff 65 00", MemoryOperand(R13, None, 1, 0)),
        ("ff a0 00 01 00 00", MemoryOperand(RAX, None, 1, 256)),
        ("ff 24 c5 10 00 00 80", MemoryOperand(None, RAX, 8, -0x7FFF_FFF0)),
        ("42 ff 64 a5 7f", MemoryOperand(RBP, R12, 4, 127)),
        ("43 ff 14 49", MemoryOperand(R9, R9, 2, 0)),
        ("ff 14 25 00 10 00 00", MemoryOperand(None, None, 1, 0x1000)),
        ("ff 15 f0 ff ff ff", MemoryOperand(None, None, 1, AT - 10)),
        ("67 ff 15 f0 ff ff ff", MemoryOperand(None, None, 1, AT - 9, 4)),
        ("67 ff 11", MemoryOperand(RCX, None, 1, 0, 4)),
        ("64 ff 11", MemoryOperand(RCX, None, 1, 0, segment=Segment.FS)),
        ("64 65 ff 11", MemoryOperand(RCX, None, 1, 0, segment=Segment.GS)),
        ("3e ff 11", MemoryOperand(RCX, None, 1, 0)),
    ],
)
def test_the_operand_of_a_branch_through_memory(code, operand):
    """Section P"""
    assert memory_operand(decoded(code)) == operand


@pytest.mark.parametrize("code", [b"", b"\x48", b"\x06", b"\xe8\x00\x00", b"\x0f\x04"])
def test_what_is_no_instruction_is_refused(code):
    with pytest.raises(ValueError, match="not an x86-64 instruction"):
        decode(code, AT)


@pytest.mark.parametrize(
    ("code", "prefixes", "rex", "opcode", "modrm"),
    [
        ("48 8b 05 00 00 00 00", "", 0x48, 0x8B, 0x05),
        ("66 41 4d 83 9f df e8 da 79 2b", "66", 0x4D, 0x83, 0x9F),
        ("48 f3 c7 c2 17 b4 f0 94", "f3", 0, 0xC7, 0xC2),
        ("44 66 48 01 d8", "66", 0x48, 0x01, 0xD8),
    ],
)
def test_only_the_rex_in_front_of_the_opcode_counts(code, prefixes, rex, opcode, modrm):
    """KP-33"""
    insn = decoded(code)
    assert (insn.prefixes.hex(" "), insn.rex, insn.opcode, insn.modrm) == (prefixes, rex, opcode, modrm)


def test_a_move_from_a_control_register_has_no_displacement():
    """Its ModRM byte looks like that of an operand relative to rip."""
    assert (decoded("0f 20 05").length, decoded("0f 20 05").rip_target) == (3, None)


def _check(code: bytes) -> None:
    told = next(decoder(detail=True).disasm(code[:15], AT, 1), None)
    if told is not None:
        insn = decode(code, AT)
        assert (insn.length, insn.modrm_offset) == (told.size, told.modrm_offset), code.hex(" ")


_MAPS = ("", "0f", "66 0f", "f3 0f", "0f 38", "66 0f 38", "66 0f 3a", "c5 f8", "c4 e2 79", "c4 e3 79", "62 f1 7c 48")


@pytest.mark.parametrize("opening", _MAPS)
def test_the_modrm_byte_of_every_opcode_is_where_capstone_finds_it(opening):
    for opcode in range(256):
        for modrm in (0x00, 0x05, 0x44, 0xC1, 0xD0, 0xF8):
            _check(bytes.fromhex(opening) + bytes([opcode, modrm]) + bytes(9))


def test_the_modrm_byte_is_found_in_any_bytes():
    rng = random.Random(1)
    for _ in range(2000):
        _check(
            rng.choice([b"", b"\x0f", b"\x66\x0f", b"\x0f\x38", b"\xc5", b"\xc4", b"\x62", b"\x8f"]) + rng.randbytes(15)
        )
