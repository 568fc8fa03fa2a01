"""Reading instructions natively: lengths, operands in memory, and which fields name general registers.

For scans of whole libraries, where a Python object for each instruction would take seconds. What compilers do not write
(moves of control registers, 32-bit addresses, prefixes after REX) is not read: `read` reports this, and callers use `decode`.
"""

from __future__ import annotations

from sandbox.native import *

NO_REGISTER = 16

_UNREAD, _MODRM, _IMM8, _IMM32, _REG, _RM, _BYTE_REG, _BYTE_RM = 1, 2, 4, 8, 16, 32, 64, 128
"""The bytes that follow an opcode, or that it is not read; whether the fields reg and rm of its ModRM are general
registers, and whether those are bytes, of which four are called ah to bh without REX."""
_BOTH = _MODRM | _REG | _RM
_BYTES = _BOTH | _BYTE_REG | _BYTE_RM
_MAP_0F, _MAP_0F38, _MAP_0F3A = 1, 2, 3


def _one_byte() -> dict[int, int]:
    forms = dict.fromkeys(range(256), _UNREAD)
    for first in range(0, 0x40, 8):
        forms |= dict.fromkeys((first, first + 2), _BYTES) | dict.fromkeys((first + 1, first + 3), _BOTH)
        forms |= {first + 4: _IMM8, first + 5: _IMM32}
    forms |= dict.fromkeys((*range(0x50, 0x60), *range(0x90, 0x9A), 0x9B, *range(0x9C, 0xA0)), 0)
    forms |= {0x63: _BOTH, 0x68: _IMM32, 0x69: _BOTH | _IMM32, 0x6A: _IMM8, 0x6B: _BOTH | _IMM8}
    forms |= dict.fromkeys((*range(0x70, 0x80), *range(0xB0, 0xB8), *range(0xE0, 0xE4), 0xA8, 0xEB), _IMM8)
    forms |= dict.fromkeys((0x80, 0xC0, 0xC6), _MODRM | _RM | _BYTE_RM | _IMM8)
    forms |= dict.fromkeys((0x83, 0xC1), _MODRM | _RM | _IMM8)
    forms |= dict.fromkeys((0x81, 0xC7), _MODRM | _RM | _IMM32)
    forms |= dict.fromkeys((0x84, 0x86, 0x88, 0x8A), _BYTES) | dict.fromkeys((0x85, 0x87, 0x89, 0x8B, 0x8D), _BOTH)
    forms |= dict.fromkeys((*range(0xB8, 0xC0), 0xA9, 0xE8, 0xE9), _IMM32)
    forms |= dict.fromkeys((*range(0xA4, 0xA8), *range(0xAA, 0xB0), 0xC3, 0xC9, 0xF4, 0xF5, *range(0xF8, 0xFE)), 0)
    forms |= dict.fromkeys((0xD0, 0xD2, 0xF6, 0xFE), _MODRM | _RM | _BYTE_RM)
    forms |= dict.fromkeys((0xD1, 0xD3, 0xF7, 0xFF), _MODRM | _RM)
    return forms | dict.fromkeys(range(0xD8, 0xE0), _MODRM)


def _two_bytes() -> dict[int, int]:
    forms = dict.fromkeys(range(256), _UNREAD)
    vector = (*range(0x10, 0x18), *range(0x28, 0x30), *range(0x50, 0x70), *range(0x74, 0x77), *range(0x7C, 0x80))
    forms |= dict.fromkeys((0x0D, *range(0x18, 0x20), 0xAE, *vector, *range(0xD0, 0xFF)), _MODRM)
    forms |= dict.fromkeys((*range(0x70, 0x74), 0xC2, 0xC6), _MODRM | _IMM8)
    forms |= dict.fromkeys((0xC3, 0xB8, 0xAF, 0xA3, 0xA5, 0xAB, 0xAD, 0xB1, 0xB3, 0xB7), _BOTH)
    forms |= dict.fromkeys((0xB0, 0xC0), _BYTES) | dict.fromkeys((0xB6, 0xBE), _BOTH | _BYTE_RM)
    forms |= dict.fromkeys((0xBB, 0xBC, 0xBD, 0xBF, 0xC1, *range(0x40, 0x50)), _BOTH) | {
        0xA4: _BOTH | _IMM8,
        0xAC: _BOTH | _IMM8,
    }
    forms |= dict.fromkeys(range(0x90, 0xA0), _MODRM | _RM | _BYTE_RM)
    forms |= dict.fromkeys((0xC7, 0x2A, 0x6E, 0x7E), _MODRM | _RM)
    forms |= dict.fromkeys((0xBA, 0xC4), _MODRM | _RM | _IMM8)
    forms |= dict.fromkeys((0x2C, 0x2D, 0x50, 0xD7), _MODRM | _REG) | {0xC5: _MODRM | _REG | _IMM8}
    forms |= dict.fromkeys(range(0x80, 0x90), _IMM32)
    return forms | dict.fromkeys((0x0B, 0x31, 0x77, 0xA2, *range(0xC8, 0xD0)), 0)


def _table() -> bytes:
    """The form of each opcode, by map and opcode."""
    maps = [_one_byte(), _two_bytes(), dict.fromkeys(range(256), _MODRM), dict.fromkeys(range(256), _MODRM | _IMM8)]
    maps[_MAP_0F38] |= dict.fromkeys(range(0xF0, 0x100), _BOTH)
    maps[_MAP_0F3A] |= dict.fromkeys((*range(0x14, 0x18), *range(0x20, 0x23), 0xF0), _BOTH | _IMM8)
    return bytes(forms[opcode] for forms in maps for opcode in range(256))


forms = global_var(array[u8, 1024], _table())


@struct
class Read(Structure):
    """An instruction.

    `opcode`: with its map (0; 1: 0f; 2: 0f 38; 3: 0f 3a) above the low byte. `rex`: the byte, 0 if there is none. `reg`, `rm`:
    the registers that ModRM names (0..15), NO_REGISTER if it names none, or none of those. `extension`: its reg field.
    `base`: of the operand in memory, if it is [base + displacement] and nothing else. `third`: the register that a VEX prefix
    names. `is_scaled`: the displacement counts in units that are not known here (EVEX). `relative`: the offset of a displacement
    from rip, or 0.
    """

    length: u64
    opcode: u32
    form: u32
    rex: u32
    extension: u32
    reg: u32
    rm: u32
    third: u32
    base: u32
    displacement: i64
    immediate: i64
    relative: u64
    is_word: bool_  # has the prefix 66, which REX.W overrides
    is_vector: bool_  # written with VEX or EVEX
    is_scaled: bool_


@native(inline=True)
def byte_at(code: ptr[u8], at: u64) -> u32:
    return cast(u32, code[at])


@native(inline=True)
def word_at(code: ptr[u8], at: u64) -> i64:
    """Four bytes, as a signed number."""
    low = byte_at(code, at) | byte_at(code, at + 1) << 8
    return cast(i64, cast(i32, low | byte_at(code, at + 2) << 16 | byte_at(code, at + 3) << 24))


@native(inline=True)
def read_prefixes(code: ptr[u8], insn: ptr[Read]) -> u64:
    """The offset after prefixes and REX."""
    at: u64 = 0
    while at < 14:
        byte = byte_at(code, at)
        if byte == 0x66:
            insn.is_word = True
        elif byte == 0x67:
            return 15
        elif byte != 0xF0 and byte != 0xF2 and byte != 0xF3 and byte & 0xE7 != 0x26 and byte & 0xFE != 0x64:
            break
        at += 1
    if byte_at(code, at) & 0xF0 == 0x40:
        insn.rex = byte_at(code, at)
        at += 1
    return at


@native(inline=True)
def read_opcode(code: ptr[u8], at: u64, insn: ptr[Read]) -> u64:
    """The offset after a legacy opcode."""
    byte = byte_at(code, at)
    if byte != 0x0F:
        insn.opcode = byte
        return at + 1
    second = byte_at(code, at + 1)
    if second == 0x38 or second == 0x3A:
        insn.opcode = byte_at(code, at + 2) | (0x200 if second == 0x38 else 0x300)
        return at + 3
    insn.opcode = second | 0x100
    return at + 2


@native(inline=True)
def read_vector_opcode(code: ptr[u8], at: u64, insn: ptr[Read]) -> u64:
    """The offset after an opcode with VEX or EVEX; 15 if its map is not known."""
    first = byte_at(code, at)
    second = byte_at(code, at + 1)
    third = byte_at(code, at + 2)
    insn.is_vector = True
    if first == 0xC5:
        insn.rex = (~second >> 5) & 4
        insn.third = (~second >> 3) & 15
        insn.opcode = third | 0x100
        return at + 3
    insn.rex = (~second >> 5) & 7 | (third >> 4) & 8
    insn.third = (~third >> 3) & 15
    number = second & 0x1F if first == 0xC4 else second & 7
    if number < 1 or number > 3:
        return 15
    insn.is_scaled = first == 0x62
    after: u64 = 4 if first == 0x62 else 3
    insn.opcode = byte_at(code, at + after) | number << 8
    return at + after + 1


@native(inline=True)
def read_memory(code: ptr[u8], at: u64, modrm: u32, insn: ptr[Read]) -> u64:
    """The offset after the operand in memory of the ModRM before `at`."""
    mode = modrm >> 6
    base = modrm & 7
    after = at
    is_plain = True
    if base == 4:
        sib = byte_at(code, at)
        after += 1
        base = sib & 7
        is_plain = sib & 0x38 == 0x20 and insn.rex & 2 == 0
    if base == 5 and mode == 0:
        insn.relative = after if after == at else 0
        return after + 4
    if is_plain:
        insn.base = base | (insn.rex & 1) << 3
    if mode == 1:
        insn.displacement = cast(i64, cast(i8, code[after]))
        return after + 1
    if mode == 2:
        insn.displacement = word_at(code, after)
        return after + 4
    return after


@native(inline=True)
def is_high_byte(insn: ptr[Read], byte: u32, number: u32) -> bool_:
    """Whether a field is one of ah to bh."""
    return insn.form & byte != 0 and insn.rex == 0 and number >= 4


@native(inline=True)
def read_modrm(code: ptr[u8], at: u64, insn: ptr[Read]) -> u64:
    """The offset after ModRM and what belongs to it."""
    modrm = byte_at(code, at)
    insn.extension = modrm >> 3 & 7
    if insn.form & _REG != 0 and not is_high_byte(insn, _BYTE_REG, insn.extension):
        insn.reg = insn.extension | (insn.rex & 4) << 1
    if modrm >= 0xC0:
        if insn.form & _RM != 0 and not is_high_byte(insn, _BYTE_RM, modrm & 7):
            insn.rm = modrm & 7 | (insn.rex & 1) << 3
        return at + 1
    return read_memory(code, at + 1, modrm, insn)


@native(inline=True)
def is_relative(opcode: u32) -> bool_:
    """A call or jump with a distance of four bytes."""
    return opcode & ~1 == 0xE8 or opcode & ~15 == 0x180


@native(inline=True)
def read_immediate(code: ptr[u8], at: u64, insn: ptr[Read]) -> u64:
    """The offset after the immediate operand."""
    form = insn.form
    if (insn.opcode == 0xF6 or insn.opcode == 0xF7) and insn.extension < 2:
        form |= _IMM8 if insn.opcode == 0xF6 else _IMM32
    if form & _IMM8 != 0:
        insn.immediate = cast(i64, cast(i8, code[at]))
        return at + 1
    if form & _IMM32 == 0:
        return at
    if insn.opcode & ~7 == 0xB8 and insn.rex & 8 != 0:
        return at + 8
    if insn.is_word and insn.rex & 8 == 0:
        return at + 2 if not is_relative(insn.opcode) else cast(u64, 16)  # Intel reads four bytes there, AMD two
    insn.immediate = word_at(code, at)
    return at + 4


@native(inline=True)
def nothing_read(insn: ptr[Read]) -> void:
    insn.rex = 0
    insn.extension = 0
    insn.reg = NO_REGISTER
    insn.rm = NO_REGISTER
    insn.third = NO_REGISTER
    insn.base = NO_REGISTER
    insn.displacement = 0
    insn.immediate = 0
    insn.relative = 0
    insn.is_word = False
    insn.is_vector = False
    insn.is_scaled = False


@native
def read(code: ptr[u8], insn: ptr[Read]) -> bool_:
    """Read the instruction at `code`, followed by 32 readable bytes. False if it is none that is read here."""
    nothing_read(insn)
    at = read_prefixes(code, insn)
    if at >= 15:
        return False
    byte = byte_at(code, at)
    if byte == 0xC4 or byte == 0xC5 or byte == 0x62:
        at = read_vector_opcode(code, at, insn)
        if at >= 15:
            return False
    else:
        at = read_opcode(code, at, insn)
    insn.form = cast(u32, forms[cast(u64, insn.opcode)])
    if insn.form & _UNREAD != 0:
        return False
    if insn.form & _MODRM != 0:
        at = read_modrm(code, at, insn)
    at = read_immediate(code, at, insn)
    insn.length = at
    return at <= 15
