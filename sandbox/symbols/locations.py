"""Where a variable is at an instruction, by the DWARF location descriptions that compilers write for C and C++."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandbox.symbols.dwarf_entries import unit_base
from sandbox.x86_64.dwarf_registers import REGISTERS, VECTORS

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_ADDR, _DEREF, _CONSTU, _CONSTS = 0x03, 0x06, 0x10, 0x11
_FIXED = {0x08: (1, False), 0x09: (1, True), 0x0A: (2, False), 0x0B: (2, True),
          0x0C: (4, False), 0x0D: (4, True), 0x0E: (8, False), 0x0F: (8, True)}  # fmt: skip
"""DW_OP_const1u to const8s: bytes, and whether they have a sign."""
_LIT, _REG, _BREG, _LAST = 0x30, 0x50, 0x70, 0x8F
_REGX, _FBREG, _CALL_FRAME_CFA, _IMPLICIT_VALUE, _STACK_VALUE = 0x90, 0x91, 0x9C, 0x9E, 0x9F
_PIECE, _ENTRY_VALUES = 0x93, (0xA3, 0xF3)
_COUNT = 32
"""Registers and literals that have an operation of their own."""
_WORD = (1 << 64) - 1
EVERYWHERE = 0, _WORD
"""The range of an expression that holds in the whole scope."""

FrameBase = Callable[[], "tuple[int, int] | None"]
"""Finds the canonical frame address: a register's number and an offset; None if it is not known."""


class NotFetchable(LookupError):
    """A variable whose value cannot be fetched: a sentence without its subject."""


@dataclass(frozen=True)
class Location:
    """The value is in a register, or a constant; with `offsets`, it is in memory: at that plus the first, and so on.

    `register`: its name in pt_regs; '' for the constant.
    """

    register: str
    constant: int
    offsets: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As fetch arguments write it."""
        text = f"%{self.register}" if self.register else f"\\{self.constant}"
        for offset in self.offsets:
            text = f"{offset:+#x}({text})"
        return text


def location_at(variable: DIE, function: DIE, offset: int, frame: FrameBase) -> Location:
    """Where a variable of a function is before the instruction at `offset`, an address in the file. Raises NotFetchable."""
    constant = variable.attributes.get("DW_AT_const_value")
    if constant is not None:
        value = constant.value
        return Location("", (value if isinstance(value, int) else int.from_bytes(bytes(value), "little")) & _WORD)
    entries = list(expressions(variable))
    for start, end, expression in entries:
        if start <= offset < end:
            return _evaluated(expression, function, offset, frame)
    lives = ", ".join(f"{start:#x}-{end:#x}" for start, end, expression in entries if expression)
    raise NotFetchable(
        f"is optimized out here: it lives at {lives} in the file" if lives else "is optimized out everywhere"
    )


def expressions(die: DIE, attribute: str = "DW_AT_location") -> Iterator[tuple[int, int, bytes]]:
    """The ranges of addresses in the file, with the expression for each."""
    found = die.attributes.get(attribute)
    if found is None:
        return
    from elftools.dwarf.locationlists import BaseAddressEntry, LocationEntry, LocationExpr, LocationParser

    parsed: Any = LocationParser(die.dwarfinfo.location_lists()).parse_from_attribute(found, die.cu["version"], die)
    if isinstance(parsed, LocationExpr):
        yield *EVERYWHERE, bytes(parsed.loc_expr)
        return
    base = unit_base(die)
    for entry in parsed:
        if isinstance(entry, BaseAddressEntry):
            base = entry.base_address
        elif isinstance(entry, LocationEntry):
            added = 0 if entry.is_absolute else base
            is_default = entry.begin_offset == entry.end_offset == -1
            ends = EVERYWHERE if is_default else (added + entry.begin_offset, added + entry.end_offset)
            yield *ends, bytes(entry.loc_expr)


def is_constant(expression: bytes) -> bool:
    """Whether it has the value of a variable itself, or of its first part, instead of where that is."""
    code = expression[0] if expression else _IMPLICIT_VALUE
    return _LIT <= code < _LIT + _COUNT or code in (_ADDR, _CONSTU, _CONSTS, _IMPLICIT_VALUE) or code in _FIXED


def _evaluated(expression: bytes, function: DIE, offset: int, frame: FrameBase) -> Location:
    if not expression:
        raise NotFetchable("is optimized out here")
    code, operands = expression[0], Operands(expression[1:])
    if _REG <= code < _REG + _COUNT or code == _REGX:
        found = Location(_register(operands.uleb() if code == _REGX else code - _REG), 0)
        return _ended(found, operands.rest)
    if _BREG <= code <= _LAST:
        return _at(code - _BREG, operands.sleb(), operands.rest)
    if code == _FBREG:
        register, above = _frame_base(function, offset, frame)
        return _at(register, above + operands.sleb(), operands.rest)
    if code == _CALL_FRAME_CFA:
        return _at(*_canonical(frame), operands.rest)
    if code == _IMPLICIT_VALUE:
        size = operands.uleb()
        return Location("", int.from_bytes(operands.rest[:size][:8], "little"))
    return _ended(_constant(code, operands), operands.rest.removeprefix(bytes([_STACK_VALUE])))


def _constant(code: int, operands: Operands) -> Location:
    """The value of an expression that is a constant. Raises NotFetchable for others."""
    if code in _ENTRY_VALUES:
        raise NotFetchable("is optimized out here: only what it had at the function's entry is known")
    if code == _ADDR:
        raise NotFetchable("is static: give @NAME, its symbol")
    if _LIT <= code < _LIT + _COUNT:
        return Location("", code - _LIT)
    if code in _FIXED:
        size, signed = _FIXED[code]
        return Location("", int.from_bytes(operands.take(size), "little", signed=signed) & _WORD)
    if code in (_CONSTU, _CONSTS):
        return Location("", (operands.uleb() if code == _CONSTU else operands.sleb()) & _WORD)
    raise NotFetchable("is computed here, which a fetch argument cannot do")


def _at(register: int, offset: int, rest: bytes) -> Location:
    """What is at a register plus an offset, or that sum itself where the expression goes on so."""
    name = _register(register)
    if rest == bytes([_STACK_VALUE]) and not offset:
        return Location(name, 0)
    if rest == bytes([_DEREF]):
        return Location(name, 0, (offset, 0))
    if rest == bytes([_DEREF, _STACK_VALUE]):
        return Location(name, 0, (offset,))
    return _ended(Location(name, 0, (offset,)), rest)


def _ended(found: Location, rest: bytes) -> Location:
    if not rest:
        return found
    if _PIECE in rest[:1]:
        raise NotFetchable("is in several pieces here")
    raise NotFetchable("is computed here, which a fetch argument cannot do")


def _register(number: int) -> str:
    if number in VECTORS:
        raise NotFetchable(f"is in xmm{number - VECTORS.start} here, a register that a fetch argument cannot name")
    if number >= len(REGISTERS):
        raise NotFetchable(f"is in register number {number} of DWARF here, which a fetch argument cannot name")
    return REGISTERS[number]


def _frame_base(function: DIE, offset: int, frame: FrameBase) -> tuple[int, int]:
    for start, end, expression in expressions(function, "DW_AT_frame_base"):
        if start <= offset < end and expression:
            if expression[0] == _CALL_FRAME_CFA:
                return _canonical(frame)
            if _REG <= expression[0] < _REG + _COUNT:
                return expression[0] - _REG, 0
            if _BREG <= expression[0] <= _LAST:
                return expression[0] - _BREG, Operands(expression[1:]).sleb()
    raise NotFetchable("is in a frame whose base is not known here")


def _canonical(frame: FrameBase) -> tuple[int, int]:
    found = frame()
    if found is None:
        raise NotFetchable("is in a frame whose address unwind tables do not tell here")
    return found


class Operands:
    """The operands of an operation, and what follows: `rest`."""

    def __init__(self, rest: bytes) -> None:
        self.rest = rest

    def take(self, size: int) -> bytes:
        """The next bytes."""
        found, self.rest = self.rest[:size], self.rest[size:]
        return found

    def uleb(self) -> int:
        """A LEB128 number without a sign."""
        return self._leb()[0]

    def sleb(self) -> int:
        """A LEB128 number with a sign."""
        value, bits = self._leb()
        return value - (1 << bits) if value >> (bits - 1) else value

    def _leb(self) -> tuple[int, int]:
        value = bits = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << bits
            bits += 7
            if byte < 0x80:
                return value, bits
