"""The functions that calls and jumps of a library lead to, also through its linkage tables: by name, whether bound yet or not."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Iterator
from functools import cache

from sandbox.images.process_text import library_of, symbol_at, unique
from sandbox.symbols.libraries import Library, libraries, library_at
from sandbox.symbols.table import Symbol
from sandbox.x86_64.decoding import Decoded
from sandbox.x86_64.encoding import ENDBR64
from sandbox.x86_64.jump_sources import jumps_by_register, loaded_places

_NUMBER = re.compile(r"0x[0-9a-f]+$")
_SLOT = re.compile(r"(?P<slot>qword ptr )?\[rip (?P<sign>[+-]) (?P<distance>0x[0-9a-f]+|\d+)\]$")
_JUMP, _THROUGH_SLOT = b"\xe9", b"\xff\x25"
_ANY_JUMP = re.compile(rb"\xe9|\x0f[\x80-\x8f]")
_STUB = 16


def callee(call: Decoded) -> str:
    """The name of the function that a call or jump leads to; '' if it is not known."""
    address, slot = _destination(call)
    if slot is not None and (name := _bound_to(slot)):
        return name
    found = _function_at(address)
    return found.name if found is not None else ""


def function_reached(call: Decoded) -> Symbol | None:
    """The function that a call or jump leads to; None if it is not known, or another library's and not bound yet."""
    return _behind(*_destination(call))


def jumped_to(address: int, library: Library) -> Symbol | None:
    """The function that a jump of the library's code to this address leads to; None if it is none, or not known."""
    if any(low <= address < high for low, high in library.linkage_tables):
        return _behind(address, _slot_of(ctypes.string_at(address, _STUB), address))
    bounds = library.function_bounds(address)
    return _function_at(address) if bounds is not None and bounds[0] == address else None


def _behind(address: int, slot: int | None) -> Symbol | None:
    if slot is None:
        return _function_at(address)
    return _function_at(ctypes.c_uint64.from_address(slot).value) or _own_function(slot)


def _own_function(slot: int) -> Symbol | None:
    """The function that a slot which is not bound yet will lead to, if it is one of the library that has the slot."""
    name, library = _bound_to(slot), _library_of(slot)
    return library.named(name) if name and library is not None else None


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
    place = call.address + call.size + distance
    return (0, place) if slot["slot"] else (place, None)


def _function_at(address: int) -> Symbol | None:
    library = library_of(address)
    if library is not None and library.is_searched:
        bounds = library.function_bounds(address)
        if bounds is not None and bounds[0] != address:  # inside a function: that need not be found
            return library.beginning_at(address)
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
    library = _library_of(slot)
    return "" if library is None else library.imports.get(slot - library.base, "")


def _library_of(slot: int) -> Library | None:
    below = [library for library in libraries() if library.base <= slot]
    return unique(max(below, key=lambda library: library.base)) if below else None


class Exits:
    """Finds jumps of a library's functions to some others: its own with these `starts`, and those that it imports by `names`."""

    def __init__(self, library: Library, names: Collection[str], starts: Collection[int] = ()) -> None:
        self._slots = {library.base + offset for offset, name in unique(library).imports.items() if name in names}
        self._targets = {*starts, *(_stubs(library, self._slots) if self._slots else ())}

    def any_in(self, code: bytes, start: int) -> bool:
        """Whether the code at `start` seems to have one."""
        if not self._targets and not self._slots:
            return False
        if not self._targets.isdisjoint(jump_targets(code, start)):
            return True
        if self._slots and _has(code, start, _THROUGH_SLOT, self._slots):
            return True
        return any(place in self._slots or place in self._targets for place in loaded_places(code, start))


def jump_targets(code: bytes, start: int) -> Iterator[int]:
    """Where the jumps out of the code at `start` lead that it seems to have, conditional or not."""
    size = len(code)
    for jump in _ANY_JUMP.finditer(code):
        end = jump.end() + 4
        to = end + int.from_bytes(code[end - 4 : end], "little", signed=True)
        if not 0 <= to < size:
            yield start + to


def leaves(code: bytes, start: int) -> bool:
    """Whether the code at `start` seems to have a jump to another function."""
    return _THROUGH_SLOT in code or jumps_by_register(code) or any(True for _ in jump_targets(code, start))


def loaded_functions(code: bytes, start: int, library: Library) -> Iterator[int]:
    """The addresses of functions of the library that the code at `start` seems to load, to jump there through a register."""
    for place in loaded_places(code, start):
        if place in library:
            yield place
        elif place - library.base in library.imports and (to := ctypes.c_uint64.from_address(place).value) in library:
            yield to


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
