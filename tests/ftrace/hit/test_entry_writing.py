"""Detours and stubs that are written natively are those that Python makes."""

from __future__ import annotations

import ctypes
import random
from functools import cache

import pytest
from sampled import sampled

from ftrace.hit.x86_64 import entry_writing
from ftrace.hit.x86_64.entry_detour import DETOUR_SIZE, detour_template, entry_detour
from ftrace.hit.x86_64.entry_writing import COPY_SIZES, Detour, Stubs
from ftrace.hit.x86_64.preserving_stub import preserving_stub
from ftrace.hit.x86_64.stubs import SLOT, STUB_SIZE, TO_BODY_BY_CALL
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage
from sandbox.native.x86_64 import entry_bytes
from sandbox.native.x86_64.entry_bytes import Entries
from sandbox.x86_64.encoding import INT3

STUB, SLOT_AT, ROUTINE = 0x40_0000, 0x50_0000, 0x60_0000
TEMPLATE = detour_template(0x368, 7, 16)
AT = 0x70_0000
COVERED = (
    *(
        "55",
        "4889e5",
        "488d0d11220000",
        "f30f1efa",
        "ff3511220000",
        "c5f9ef0511220000",
        "8b0511220000",
        "c7051122000044332211",
    ),
    *("7410", "0f8410000000", "eb10", "e910000000", "e8f0ffffff", "c3", "f3c3", "75f0", "3e7410", "f2e8f0ffffff"),
)


@cache
def image():
    return NativeImage.of(Unit("entry-writing", (*entry_bytes.FUNCTIONS, *entry_writing.FUNCTIONS), bounded=False))


def written(entry, count, where):
    memory = ctypes.create_string_buffer(bytes([0x5A]) * DETOUR_SIZE, DETOUR_SIZE)
    template = ctypes.create_string_buffer(TEMPLATE.ljust(DETOUR_SIZE, bytes([INT3])), DETOUR_SIZE)
    detour = (ctypes.c_uint64 * 7)(entry.where, where, ctypes.addressof(memory), count, STUB, SLOT_AT, ROUTINE)
    assert ctypes.sizeof(detour) == Detour.size
    image().call("write_detours", ctypes.addressof(detour), 1, ctypes.addressof(template))
    return memory.raw


@pytest.mark.parametrize("code", sampled(COVERED, 8))
@pytest.mark.parametrize("where", [0x4_0000, 0x1000_0000])
def test_a_detour_has_the_copy_of_each_instruction(code, where):
    read = Entries(image(), [bytes.fromhex(code) + bytes([0x90] * 16)], [AT])
    entry = read[0]
    assert entry.is_read(1)
    assert written(entry, 1, where) == entry_detour(TEMPLATE, entry.instructions(1), where, STUB, ROUTINE, SLOT_AT).code


def test_detours_of_several_instructions_are_those_that_python_makes():
    rng = random.Random(2)
    codes = [bytes.fromhex("".join(rng.choices(COVERED, k=6))).ljust(60, b"\x90") for _ in range(300)]
    read = Entries(image(), codes, [AT] * len(codes))
    seen = 0
    for number in range(len(codes)):
        entry = read[number]
        for count in range(1, len(entry.kinds.rstrip(b"\0")) + 1):
            made = entry_detour(TEMPLATE, entry.instructions(count), 0x9_0000, STUB, ROUTINE, SLOT_AT)
            assert written(entry, count, 0x9_0000) == made.code, codes[number].hex()
            sizes = [COPY_SIZES.get(kind, length) for kind, length in zip(entry.kinds, entry.lengths, strict=True)]
            assert [b - a for a, b in zip(made.copies, made.copies[1:], strict=False)] == sizes[: count - 1]
            seen += count > 1
    assert seen > 150


def test_stubs_are_those_that_python_makes():
    memory = ctypes.create_string_buffer(4 * STUB_SIZE)
    sites, bodies = (
        (ctypes.c_uint64 * 4)(1 << 20, 2 << 20, 3 << 20, 4 << 20),
        (ctypes.c_uint64 * 4)(*range(0x800, 0x804)),
    )
    template = ctypes.create_string_buffer(preserving_stub(0, 0, 0), STUB_SIZE)
    at = ctypes.addressof
    given = Stubs.ctypes(
        base=STUB,
        delta=at(memory) - STUB,
        sites=at(sites),
        bodies=at(bodies),
        slots=SLOT_AT,
        exit=ROUTINE,
        template=at(template),
    )
    chosen = (ctypes.c_uint32 * 2)(1, 3)  # a name keeps the memory alive during the call
    image().call("write_preserving_stubs", at(given), at(chosen), 2)
    for index in range(4):
        where = STUB + index * STUB_SIZE
        expected = bytearray(preserving_stub(where, sites[index], ROUTINE) if index % 2 else bytes(STUB_SIZE))
        if index % 2:
            expected[TO_BODY_BY_CALL : TO_BODY_BY_CALL + 4] = (bodies[index] - where - TO_BODY_BY_CALL - 4).to_bytes(
                4, "little", signed=True
            )
            expected[SLOT : SLOT + 8] = (SLOT_AT + 8 * index).to_bytes(8, "little")
        assert memory.raw[index * STUB_SIZE : (index + 1) * STUB_SIZE] == bytes(expected)
