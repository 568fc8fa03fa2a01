"""The functions that calls and jumps of a library lead to, also through its linkage tables: by name, whether bound yet or not."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Iterator
from functools import cache

from sandbox.images.process_text import symbol_at, unique
from sandbox.symbols.libraries import Library, libraries, library_at
from sandbox.symbols.table import Symbol
from sandbox.x86_64.decoding import Decoded
from sandbox.x86_64.encoding import ENDBR64

_NUMBER = re.compile(r"0x[0-9a-f]+$")
_SLOT = re.compile(r"qword ptr \[rip (?P<sign>[+-]) (?P<distance>0x[0-9a-f]+|\d+)\]$")
_JUMP, _THROUGH_SLOT = b"\xe9", b"\xff\x25"
_STUB, _REL32 = 16, 5


def callee(call: Decoded) -> str:
    """The name of the function that a call or jump leads to; '' if it is not known."""
    address, slot = _destination(call)
    if slot is not None and (name := _bound_to(slot)):
        return name
    found = _function_at(address)
    return found.name if found is not None else ""


def function_reached(call: Decoded) -> Symbol | None:
    """The function that a call or jump leads to; None if it is not known, or not bound yet."""
    address, slot = _destination(call)
    if slot is not None:
        address = ctypes.c_uint64.from_address(slot).value
    return _function_at(address)


def _destination(call: Decoded) -> tuple[int, int | None]:
    """The address that it leads to, 0 if that is not known; and the slot that it goes through, if it does."""
    if _NUMBER.match(call.operands):
        address = int(call.operands, 16)
        in_library = library_at(address) is not None
        return address, _slot_of(ctypes.string_at(address, _STUB), address) if in_library else None
    slot = _SLOT.match(call.operands)
    if slot is None:
        return 0, None
    distance = int(slot["distance"], 0) * (-1 if slot["sign"] == "-" else 1)
    return 0, call.address + call.size + distance


def _function_at(address: int) -> Symbol | None:
    found = symbol_at(address) if address else None
    return found if found is not None and found.address == address else None


def _slot_of(code: bytes, address: int) -> int | None:
    """The slot that the stub with these bytes jumps through; None if it is no stub of a linkage table."""
    at = len(ENDBR64) if code.startswith(ENDBR64) else 0
    at += code[at : at + 1] in (b"\xf2", b"\x66")
    if code[at : at + 2] != _THROUGH_SLOT:
        return None
    return address + at + 6 + int.from_bytes(code[at + 2 : at + 6], "little", signed=True)


def _bound_to(slot: int) -> str:
    """The name of the function whose address the dynamic linker puts there; '' if it puts none."""
    below = [library for library in libraries() if library.base <= slot]
    if not below:
        return ""
    library = max(below, key=lambda library: library.base)
    return unique(library).imports.get(slot - library.base, "")


class Exits:
    """Finds jumps of a library's functions to some of those that it imports. `names`: of these."""

    def __init__(self, library: Library, names: Collection[str]) -> None:
        self._slots = {library.base + offset for offset, name in unique(library).imports.items() if name in names}
        self._stubs = set(_stubs(library, self._slots)) if self._slots else set[int]()

    def any_in(self, code: bytes, start: int) -> bool:
        """Whether the code at `start` seems to have one."""
        return bool(self._slots) and (
            _has(code, start, _JUMP, self._stubs) or _has(code, start, _THROUGH_SLOT, self._slots)
        )


def leaves(code: bytes, start: int) -> bool:
    """Whether the code at `start` seems to have a jump to another function."""
    at = code.find(_JUMP)
    while at >= 0:
        to = at + _REL32 + int.from_bytes(code[at + 1 : at + _REL32], "little", signed=True)
        if not 0 <= to < len(code):
            return True
        at = code.find(_JUMP, at + 1)
    return _THROUGH_SLOT in code


def _has(code: bytes, start: int, opcode: bytes, targets: Collection[int]) -> bool:
    at = code.find(opcode)
    while at >= 0:
        end = at + len(opcode) + 4
        distance = int.from_bytes(code[end - 4 : end], "little", signed=True)
        if start + end + distance in targets:
            return True
        at = code.find(opcode, at + 1)
    return False


def _stubs(library: Library, slots: Collection[int]) -> Iterator[int]:
    """The addresses of the stubs that jump through these slots."""
    for low, high in unique(library).linkage_tables:
        code = ctypes.string_at(low, high - low)
        for offset in range(0, high - low, 8):
            if _slot_of(code[offset : offset + _STUB], low + offset) in slots:
                yield low + offset


@cache
def exits(library: Library, names: frozenset[str]) -> Exits:
    """The exits of a library, read once."""
    return Exits(library, names)
