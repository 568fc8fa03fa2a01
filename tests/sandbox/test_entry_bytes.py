"""Hazard: an instruction of an entry read otherwise than it is, and copied so: the native reader against the thorough one."""

from __future__ import annotations

import ctypes
import random
import re
from functools import cache

import pytest
from return_slots import assembled
from sampled import sampled

from sandbox.images import process_text
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.native.x86_64.entry_bytes import (
    CALL,
    CONDITIONAL,
    FUNCTIONS,
    JUMP,
    OTHER,
    PLAIN,
    REACH,
    RELATIVE,
    RETURN,
    Entries,
)
from sandbox.x86_64.instruction import Flow, decode

KINDS = {Flow.CALL: CALL, Flow.JUMP: JUMP, Flow.CONDITIONAL: CONDITIONAL, Flow.RETURN: RETURN}
UNREAD = (
    *(
        "ud2",
        "int3",
        "syscall",
        "jmp *%rax",
        "call *8(%rax)",
        "jmp *8(%rip)",
        "loop .+2",
        "jrcxz .+2",
        "addr32 mov (%eax), %ecx",
    ),
    *("data16 ret", "xbegin .+6", "lret", "int $3"),
)
BRANCH = re.compile(rb"[\x70-\x7f\xe0-\xe3\xeb](?=(.))|(?:\xe9|\x0f[\x80-\x8f])(?=(....))", re.DOTALL)
"""What looks like a jump, wherever it begins."""


@cache
def image():
    return NativeImage.of(Unit("entries", FUNCTIONS, bounded=False))


def entries(codes, addresses):
    read = Entries(image(), codes, addresses)
    return [read[number] for number in range(len(codes))]


def kind_by_decoding(insn):
    if insn.flow is Flow.NEXT:
        return RELATIVE if insn.rip_target is not None else PLAIN
    return KINDS.get(insn.flow, OTHER)


def entered(code):
    found = 0
    for match in BRANCH.finditer(code):
        field = match[1] or match[2]
        at = match.end() + len(field) + int.from_bytes(field, "little", signed=True)
        found |= 1 << at if 0 < at < REACH else 0
    return found


@pytest.mark.parametrize("library", ["libz.so.1", "libm.so.6"])
def test_first_instructions_are_as_decoded(library):
    ctypes.CDLL(library)
    functions = process_text.library_called(library).functions()
    codes = [ctypes.string_at(start, max(end - start, 23)) for start, end in functions]
    seen = 0
    for entry in entries(codes, [start for start, _end in functions]):
        assert entry.entered == entered(entry.code)
        offset = 0
        for number in range(8):
            if not entry.kinds[number]:
                break
            insn = decode(entry.code[offset : offset + 15], entry.address + offset)
            assert (entry.lengths[number], entry.kinds[number]) == (insn.length, kind_by_decoding(insn)), insn.text
            offset += insn.length
            seen += 1
        assert offset >= 5 or number < 5
    assert seen > len(functions) * 1.5


@pytest.mark.parametrize("text", sampled(UNREAD, 5))
def test_an_instruction_that_cannot_simply_be_copied_is_not_read(text):
    (entry,) = entries([assembled(f"{text}; nop; nop; nop; nop; nop")], [0x1000])
    assert entry.kinds[0] == OTHER
    assert not entry.is_read(1)


def test_an_instruction_that_the_text_cuts_off_is_not_read():
    """The next function's bytes, which lie behind it where it is read, are not part of it."""
    first, second = entries([b"\x90\xe8\x00", b"\x00" * 16], [0x1000, 0x2000])
    assert first.kinds[:2] == bytes([PLAIN, OTHER])
    assert second.kinds[0] == PLAIN


def test_an_instruction_that_names_a_far_address_is_not_read():
    code = bytes.fromhex("488d05") + (0x7FFFFFF0).to_bytes(4, "little")
    assert entries([code + bytes(16)], [0x1000])[0].kinds[0] == OTHER


def test_what_is_said_of_an_instruction_that_is_not_read_comes_from_decoding():
    (entry,) = entries([assembled("nop; jmp *%rax; nop; nop; nop")], [0x1000])
    assert entry.at(0, 0) == (1, False, False)
    assert entry.at(1, 1) == (2, False, True)
    with pytest.raises(ValueError, match="a trap"):
        entries([assembled("ud2; nop; nop; nop")], [0x1000])[0].at(0, 0)


def test_bytes_that_look_like_a_jump_into_the_entry_are_found():
    rng = random.Random(11)
    alphabet = bytes([0x74, 0xEB, 0xE9, 0x0F, 0x85, 0x00, 0x01, 0xFF, 0xF8, 0xFC, 0xE2])
    codes = [bytes(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(2000)]
    found = entries(codes, [0x1000] * len(codes))
    assert [entry.entered for entry in found] == [entered(code) for code in codes]
    assert any(entry.entered for entry in found)
