"""The canonical frame address (CFA) at an instruction, by the unwind tables: the address above a call's return address."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from sandbox.elf.dwarf_reader import Reader
from sandbox.elf.ehframe import encodings
from sandbox.elf.unwinder import find_fde

_ADVANCE, _OFFSET, _RESTORE = 0x40, 0x80, 0xC0
"""The high two bits of an instruction that has an operand in its low six."""
_OPERANDS = 0x3F
_REMEMBER, _RESTORE_STATE = 0x0A, 0x0B
_ADVANCES = {0x02: 1, 0x03: 2, 0x04: 4}
"""Bytes of the operand of DW_CFA_advance_loc1 to 4."""
_DEF_CFA, _DEF_CFA_REGISTER, _DEF_CFA_OFFSET, _DEF_CFA_EXPRESSION = 0x0C, 0x0D, 0x0E, 0x0F
_SKIPPED = {0x00: 0, 0x05: 2, 0x06: 1, 0x07: 1, 0x08: 1, 0x09: 2, 0x11: 2, 0x14: 2, 0x15: 2, 0x2E: 1, 0x2F: 2}
"""Instructions that say nothing about the CFA, and their numbers of LEB128 operands."""
_BLOCKS = frozenset((0x10, 0x16))
"""Such instructions with a register and an expression."""


class FrameAddress(NamedTuple):
    """A register by its number in DWARF, and the bytes from its value to the CFA."""

    register: int
    offset: int


def frame_address(address: int) -> FrameAddress | None:
    """The CFA before the instruction at `address`; None if unwind tables do not say it, or compute it by an expression."""
    found = find_fde(address)
    if found is None:
        return None
    start, fde = found
    cie = fde + 4 - ctypes.c_int32.from_address(fde + 4).value
    rules = _Rules(start, address)
    try:
        head = Reader(cie + 8)
        rules.factor = _pass_head(head)
        rules.follow(head, _end(cie))
        own = Reader(fde + 8)
        how = encodings(cie)
        own.value(how.get("R", 0))
        own.value(how.get("R", 0) & 0x0F)
        size = own.uleb()
        own.position += size
        rules.follow(own, _end(fde))
    except ValueError:
        return None
    return rules.frame


def _end(entry: int) -> int:
    return entry + 4 + int(ctypes.c_uint32.from_address(entry).value)


def _pass_head(reader: Reader) -> int:
    """Go from a CIE's version to its instructions. Returns the factor of advances. Raises ValueError for old augmentations."""
    version = reader.byte()
    if not reader.text().startswith(b"z"):
        raise ValueError("an unwind table without augmentation data")
    factor = reader.uleb()
    reader.uleb()
    if version == 1:
        reader.byte()
    else:
        reader.uleb()
    size = reader.uleb()
    reader.position += size
    return factor


class _Rules:
    """Follows the instructions up to those about later addresses than `wanted`. `at`: the address that they are about."""

    def __init__(self, at: int, wanted: int) -> None:
        self._at, self._wanted = at, wanted
        self.factor = 1
        self.frame: FrameAddress | None = None
        self._remembered: list[FrameAddress | None] = []

    def follow(self, reader: Reader, end: int) -> None:
        """Follow the instructions up to the address `end`. Raises ValueError for one that is not known."""
        while reader.position < end and self._at <= self._wanted:
            before = self.frame
            self._step(reader.byte(), reader)
            if self._at > self._wanted:
                self.frame = before

    def _step(self, code: int, reader: Reader) -> None:
        kind = code & ~_OPERANDS
        if kind == _ADVANCE:
            self._at += (code & _OPERANDS) * self.factor
        elif kind == _OFFSET:
            reader.uleb()
        elif code in _ADVANCES:
            self._at += int.from_bytes(bytes(reader.byte() for _ in range(_ADVANCES[code])), "little") * self.factor
        elif code == _REMEMBER:
            self._remembered.append(self.frame)
        elif code == _RESTORE_STATE:
            self.frame = self._remembered.pop()
        elif code in _BLOCKS:
            reader.uleb()
            size = reader.uleb()
            reader.position += size
        elif code in _SKIPPED:
            for _ in range(_SKIPPED[code]):
                reader.uleb()
        elif kind != _RESTORE:
            self._define(code, reader)

    def _define(self, code: int, reader: Reader) -> None:
        register, offset = self.frame or (0, 0)
        if code == _DEF_CFA:
            register = reader.uleb()
            self.frame = FrameAddress(register, reader.uleb())
        elif code == _DEF_CFA_REGISTER:
            self.frame = FrameAddress(reader.uleb(), offset)
        elif code == _DEF_CFA_OFFSET:
            self.frame = FrameAddress(register, reader.uleb())
        elif code == _DEF_CFA_EXPRESSION:
            size = reader.uleb()
            reader.position += size
            self.frame = None
        else:
            raise ValueError(f"an instruction {code:#x} in an unwind table")
