"""The functions that calls and jumps of a library lead to, also through its linkage tables: by name, whether bound yet or not."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Iterator
from functools import cache

from sandbox.images.process_text import symbol_at, unique
from sandbox.symbols.libraries import Library, libraries, library_at
from sandbox.x86_64.decoding import Decoded
from sandbox.x86_64.encoding import ENDBR64

_NUMBER = re.compile(r"0x[0-9a-f]+$")
_SLOT = re.compile(r"qword ptr \[rip (?P<sign>[+-]) (?P<distance>0x[0-9a-f]+|\d+)\]$")
_JUMP, _THROUGH_SLOT = b"\xe9", b"\xff\x25"
_STUB = 16


def callee(call: Decoded) -> str:
    """The name of the function that a call or jump leads to; '' if it is not known."""
    if _NUMBER.match(call.operands):
        return _name_at(int(call.operands, 16))
    slot = _SLOT.match(call.operands)
    if slot is None:
        return ""
    distance = int(slot["distance"], 0) * (-1 if slot["sign"] == "-" else 1)
    return _bound_to(call.address + call.size + distance)


def _name_at(address: int) -> str:
    library = library_at(address)
    slot = _slot_of(ctypes.string_at(address, _STUB), address) if library is not None else None
    name = _bound_to(slot) if slot is not None else ""
    if not name and (symbol := symbol_at(address)) is not None and symbol.address == address:
        return symbol.name
    return name


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
