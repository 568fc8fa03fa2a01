"""Finds functions that do not use their return address or move their stack: native code, for thousands of functions at once.

The data-flow analysis is like that of sandbox.x86_64.return_slot, but coarser: a function that it accepts is plain, and of any
other nothing is known. On all paths to an instruction, the stack pointer must be equally far below the return slot. For each
instruction, the analysis knows which other registers may point into the stack; for the function as a whole, where to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.native.x86_64.plain_paths import (
    ARGUMENTS,
    KEPT,
    MOST_CODE,
    MOST_POINTERS,
    NONE,
    RBP,
    RDI,
    RSI,
    RSP,
    SLOTS,
    UNKNOWN,
    UNSEEN,
    Walk,
    begin,
    bit_of,
    distance_of,
    is_known,
    mark,
    moved,
    note_lea,
    note_pointer,
    pop,
    propagate,
    push,
    set_stack,
)
from sandbox.native.x86_64.reading import NO_REGISTER, Read, read

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

_PADDING = 32


@native(inline=True)
def new_stack(walk: ptr[Walk], at: u64, next_at: u64, source: i32, displacement: i64) -> bool_:
    """rsp becomes a register plus `displacement`; `source` is how far the register is below the return slot."""
    if source == NONE:
        return False
    return set_stack(walk, next_at, moved(source, -displacement), walk.frames[at])


@native(inline=True)
def compute(walk: ptr[Walk], at: u64, insn: ptr[Read], target: u32, source: u32) -> bool_:
    """`mov` from a register, or `lea`."""
    next_at = at + insn.length
    distance = distance_of(walk, at, source)
    if target == RSP:
        return insn.rex & 8 != 0 and new_stack(walk, at, next_at, distance, insn.displacement)
    pointed = moved(distance, -insn.displacement)
    points = walk.mask & bit_of(source) != 0
    if points and not note_lea(walk, source, target, insn.displacement):
        return False
    if source == RSP and is_known(distance):
        points = True
        if not note_pointer(walk, target, cast(i64, pointed)):
            return False
    mark(walk, target, points)
    frame = walk.frames[at]
    if target == RBP:
        frame = pointed if insn.rex & 8 != 0 else cast(i32, NONE)
    return propagate(walk, next_at, walk.depths[at], frame)


@native(inline=True)
def add_to_stack(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """An instruction of the first group with a number, on rsp."""
    next_at = at + insn.length
    depth = walk.depths[at]
    if insn.extension == 7:
        return propagate(walk, next_at, depth, walk.frames[at])
    if insn.rex & 8 == 0 or insn.is_word or insn.opcode == 0x80:
        return False
    if insn.extension == 4 or insn.extension == 1:
        return propagate(walk, next_at, UNKNOWN, walk.frames[at])
    if insn.extension != 0 and insn.extension != 5:
        return False
    amount = insn.immediate if insn.extension == 5 else -insn.immediate
    return set_stack(walk, next_at, moved(depth, amount), walk.frames[at])


@native(inline=True)
def lowers_stack(insn: ptr[Read]) -> bool_:
    """`sub` or `and` of rsp with another register, or memory."""
    target = insn.rm if insn.opcode & 2 == 0 else insn.reg
    return target == RSP and insn.rex & 8 != 0 and (insn.opcode & ~2 == 0x29 or insn.opcode & ~2 == 0x21)


@native(inline=True)
def branch(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """A direct jump, conditional or not. Targets outside the function are ignored."""
    next_at = at + insn.length
    target = next_at + cast(u64, insn.immediate)
    if not propagate(walk, target, walk.depths[at], walk.frames[at]):
        return False
    if insn.opcode == 0xE9 or insn.opcode == 0xEB:
        return True
    return propagate(walk, next_at, walk.depths[at], walk.frames[at])


@native(inline=True)
def is_branch(opcode: u32) -> bool_:
    return opcode & ~15 == 0x70 or opcode & ~15 == 0x180 or opcode & ~3 == 0xE0 or opcode == 0xE9 or opcode == 0xEB


@native(inline=True)
def is_comparison(insn: ptr[Read]) -> bool_:
    opcode = insn.opcode
    if opcode >= 0x80 and opcode <= 0x83:
        return insn.extension == 7
    return opcode & ~3 == 0x38 or opcode & ~1 == 0x84


@native(inline=True)
def overwritten(insn: ptr[Read]) -> u32:
    """A register that holds no pointer after the instruction. NO_REGISTER if there is none, or it is not recognised."""
    opcode = insn.opcode
    if insn.is_word or insn.is_vector:
        return NO_REGISTER
    if opcode < 0x38 and opcode & 5 == 1:
        return insn.rm if opcode & 2 == 0 else insn.reg
    if opcode == 0x63 or opcode == 0x69 or opcode == 0x6B or opcode == 0x1AF or opcode & ~15 == 0x140:
        return insn.reg
    if opcode & ~9 == 0x1B6:
        return insn.reg
    if opcode == 0x81 or opcode == 0x83 or opcode == 0xC7 or opcode == 0xC1 or opcode & ~2 == 0xD1:
        return insn.rm
    return insn.opcode & 7 | (insn.rex & 1) << 3 if opcode & ~7 == 0xB8 else cast(u32, NO_REGISTER)


@native(inline=True)
def is_string(opcode: u32) -> bool_:
    return opcode >= 0xA4 and opcode <= 0xAF and opcode & ~1 != 0xA8


@native
def plain_step(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """An instruction that does not use the stack pointer; False if it may. Also 16-bit instructions other than branches."""
    register = insn.opcode & 7 | (insn.rex & 1) << 3
    named = insn.opcode & ~7 == 0xB8 or insn.opcode & ~7 == 0x1C8 or (insn.opcode > 0x90 and insn.opcode < 0x98)
    if not named or insn.is_vector:
        register = NO_REGISTER
    frame = walk.frames[at]
    if not is_comparison(insn):
        if insn.reg == RSP or insn.rm == RSP or register == RSP:
            return False
        if insn.third == RSP and insn.opcode >> 4 == 0x2F and not insn.is_scaled:
            return False
        if insn.reg == RBP or insn.rm == RBP or insn.third == RBP or register == RBP:
            frame = NONE
        mark(walk, overwritten(insn), False)
    return propagate(walk, at + insn.length, walk.depths[at], frame)


@native
def group_5_step(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """`inc`, `dec`, `call`, `jmp` or `push`, of a register or of memory."""
    if insn.extension == 6:
        return push(walk, at, at + insn.length, insn.rm)
    if insn.extension == 4:
        return True
    if insn.extension == 2:
        walk.mask &= KEPT
        return propagate(walk, at + insn.length, walk.depths[at], walk.frames[at])
    return insn.extension < 2 and plain_step(walk, at, insn)


@native(inline=True)
def is_move(opcode: u32) -> bool_:
    return opcode == 0x89 or opcode == 0x8B or opcode == 0x8D


@native(inline=True)
def move(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """`mov` to or from a register, or `lea`."""
    if insn.opcode == 0x89:
        return compute(walk, at, insn, insn.rm, insn.reg)
    return compute(walk, at, insn, insn.reg, insn.rm if insn.opcode == 0x8B else insn.base)


@native(inline=True)
def is_push_or_pop(opcode: u32) -> bool_:
    return opcode & ~15 == 0x50 or opcode == 0x68 or opcode == 0x6A or opcode & ~1 == 0x9C


@native(inline=True)
def push_or_pop(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """Of a register, a number, or the flags."""
    opcode = insn.opcode
    register = opcode & 7 | (insn.rex & 1) << 3 if opcode & ~15 == 0x50 else cast(u32, NO_REGISTER)
    if opcode == 0x9D or (opcode >= 0x58 and opcode < 0x60):
        return pop(walk, at, at + insn.length, register)
    return push(walk, at, at + insn.length, register)


@native(inline=True)
def leave(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """rsp becomes rbp, which is popped."""
    source = walk.frames[at]
    return source != NONE and set_stack(walk, at + insn.length, moved(source, -8), NONE)


@native(inline=True)
def ends_path(opcode: u32) -> bool_:
    """`ret`, `hlt` or `ud2`."""
    return opcode == 0xC3 or opcode == 0xF4 or opcode == 0x10B


@native
def legacy_step(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """One instruction without a VEX prefix. False if the function cannot be shown to be plain."""
    opcode = insn.opcode
    next_at = at + insn.length
    if opcode == 0x89 and insn.rm == NO_REGISTER:
        return propagate(walk, next_at, walk.depths[at], walk.frames[at])
    if insn.is_word:
        return opcode & ~15 != 0x50 and not is_branch(opcode) and plain_step(walk, at, insn)
    if is_move(opcode):
        return move(walk, at, insn)
    if is_push_or_pop(opcode):
        return push_or_pop(walk, at, insn)
    if is_branch(opcode):
        return branch(walk, at, insn)
    if opcode == 0xE8:
        walk.mask &= KEPT
        return propagate(walk, next_at, walk.depths[at], walk.frames[at])
    if ends_path(opcode):
        return True
    if opcode == 0xC9:
        return leave(walk, at, insn)
    if opcode == 0xFF:
        return group_5_step(walk, at, insn)
    if opcode >= 0x80 and opcode <= 0x83 and insn.rm == RSP:
        return add_to_stack(walk, at, insn)
    if lowers_stack(insn):
        return propagate(walk, next_at, UNKNOWN, walk.frames[at])
    return plain_step(walk, at, insn)


@native
def step(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """One instruction. False if the function cannot be shown to be plain."""
    if not read(cast(ptr[u8], cast(u64, walk.code) + at), insn):
        return False
    if insn.base == RSP and insn.opcode != 0x8D:
        depth = walk.depths[at]
        if insn.is_scaled or (is_known(depth) and cast(i64, depth) == insn.displacement):
            return False
    return plain_step(walk, at, insn) if insn.is_vector else legacy_step(walk, at, insn)


@native
def spread(walk: ptr[Walk], register: u64, distance: i64) -> bool_:
    """Note the registers that one instruction copies a pointer to, from this register. False if there are too many."""
    for target in range(16):
        if walk.copied[register] >> target & 1 != 0 and not note_pointer(walk, cast(u32, target), distance):
            return False
    for index in range(min(walk.nr_leas, MOST_POINTERS)):
        lea = addressof(walk.leas[index])
        if lea.register & 255 == register and not note_pointer(
            walk, cast(u32, lea.register >> 8), distance - lea.distance
        ):
            return False
    return True


@native
def spread_all(walk: ptr[Walk]) -> bool_:
    """Propagate pointers between registers until nothing changes. False if there are too many."""
    for slot in range(SLOTS):
        for register in range(16):
            if walk.pushed[slot] >> register & 1 != 0:
                walk.copied[register] |= walk.popped[slot]
    done: u64 = 0
    while done < walk.nr_pointers:
        if not spread(walk, walk.pointers[done].register, walk.pointers[done].distance):
            return False
        done += 1
    return True


@native
def is_reached(walk: ptr[Walk], at: u64, base: u32, insn: ptr[Read]) -> bool_:
    """Whether the operand in memory may be the return slot, by what the register `base` may hold."""
    if walk.masks[at] & bit_of(base) == 0:
        return False
    for index in range(min(walk.nr_pointers, MOST_POINTERS)):
        pointer = addressof(walk.pointers[index])
        if pointer.register == cast(u64, base) and (insn.is_scaled or pointer.distance == insn.displacement):
            return True
    return False


@native(inline=True)
def reaches(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """Whether an operand in memory, of which string instructions have two, may be the return slot."""
    if is_string(insn.opcode):
        return is_reached(walk, at, RSI, insn) or is_reached(walk, at, RDI, insn)
    return insn.opcode != 0x8D and is_reached(walk, at, insn.base, insn)


@native(inline=True)
def passes_slot(walk: ptr[Walk], at: u64, insn: ptr[Read]) -> bool_:
    """Whether it is a call, and an argument may be the address of the return slot."""
    if insn.opcode != 0xE8 and (insn.opcode != 0xFF or insn.extension != 2):
        return False
    for index in range(min(walk.nr_pointers, MOST_POINTERS)):
        pointer = addressof(walk.pointers[index])
        if pointer.distance == 0 and walk.masks[at] & bit_of(cast(u32, pointer.register)) & ARGUMENTS != 0:
            return True
    return False


@native
def keeps_off(walk: ptr[Walk], insn: ptr[Read]) -> bool_:
    """Whether no instruction uses the return slot, or passes it on, through a register that points into the stack."""
    if walk.nr_pointers == 0:
        return True
    for at in range(walk.end):
        if walk.depths[at] != UNSEEN and walk.masks[at] != 0:
            read(cast(ptr[u8], cast(u64, walk.code) + at), insn)
            if reaches(walk, at, insn) or passes_slot(walk, at, insn):
                return False
    return True


@native
def is_plain(walk: ptr[Walk], insn: ptr[Read]) -> bool_:
    """Whether the function certainly uses neither its return slot nor its caller's stack."""
    begin(walk)
    propagate(walk, 0, 0, NONE)
    while walk.nr_waiting != 0:
        walk.nr_waiting -= 1
        at = cast(u64, walk.waiting[walk.nr_waiting])
        walk.mask = walk.masks[at]
        if not step(walk, at, insn):
            return False
    return spread_all(walk) and keeps_off(walk, insn)


@native
def plain_functions(walk: ptr[Walk], code: ptr[u8], sizes: ptr[u64], count: u64, found: ptr[u8]) -> void:
    """Set `found` to 1 for each of `count` consecutive functions that is plain. 32 readable bytes follow the last."""
    start = cast(u64, code)
    for index in range(count):
        insn: Read = zeroed
        walk.code = cast(ptr[u8], start)
        walk.end = sizes[index]
        start += walk.end
        found[index] = cast(u8, is_plain(walk, addressof(insn)) if walk.end <= MOST_CODE else False)


def are_plain(image: NativeImage, codes: Sequence[bytes]) -> list[bool]:
    """For each of these functions, whether it certainly uses neither its return slot nor its caller's stack.

    `image` has `plain_functions`.
    """
    text = ctypes.create_string_buffer(b"".join(codes), sum(map(len, codes)) + _PADDING)
    sizes = (ctypes.c_uint64 * len(codes))(*map(len, codes))
    found = ctypes.create_string_buffer(len(codes) or 1)
    walk = ctypes.create_string_buffer(Walk.size)
    at = ctypes.addressof
    image.call("plain_functions", at(walk), at(text), at(sizes), len(codes), at(found))
    return [value != 0 for value in found.raw[: len(codes)]]
