"""The data-flow analysis of `plain_returns`: its state before each instruction, which is the stack and pointers into it."""

from __future__ import annotations

from sandbox.native import *

RSP, RBP, RSI, RDI = 4, 5, 6, 7
UNSEEN, UNKNOWN, NONE = -(1 << 30), -(1 << 30) + 1, -(1 << 30) + 2
"""No path reaches the instruction; an unknown distance; no pointer into the stack."""
MOST_CODE = 1 << 17
"""Bytes of the largest function that is analysed."""
MOST_POINTERS = 96
KEPT = 0xF028
"""The callee-saved registers, as bits of a mask."""
ARGUMENTS = 0x3C6
"""The registers that arguments are passed in, as bits of a mask."""
SLOTS = 64


@struct
class Pointer(Structure):
    """A register may point `distance` bytes below the return slot."""

    register: u64
    distance: i64


@struct
class Walk(Structure):
    """The state of the analysis of one function of `end` bytes.

    By offset: how far rsp and rbp are below the return slot (`depths`, `frames`), and which registers may point to a known
    place in the stack (`masks`, a bit each). `mask`: the same after the current instruction.
    """

    code: ptr[u8]
    end: u64
    nr_waiting: u64
    nr_pointers: u64
    mask: u32
    copied: array[u32, 16]  # by register: the registers that it is copied to while it may point into the stack
    pushed: array[u32, 64]  # by depth: the registers that are pushed while they may point into the stack,
    popped: array[u32, 64]  # the registers popped after such a push,
    unpushed: array[u32, 64]  # and whether one is popped before it
    pointers: array[Pointer, 96]
    nr_leas: u64
    leas: array[Pointer, 96]  # register: source | target << 8
    masks: array[u32, 131072]
    depths: array[i32, 131072]
    frames: array[i32, 131072]
    waiting: array[u32, 131072]


@native(inline=True)
def begin(walk: ptr[Walk]) -> void:
    walk.nr_waiting = 0
    walk.nr_pointers = 0
    walk.nr_leas = 0
    walk.mask = 0
    for index in range(16):
        walk.copied[index] = 0
    for slot in range(SLOTS):
        walk.pushed[slot] = 0
        walk.popped[slot] = 0
        walk.unpushed[slot] = 0
    for at in range(walk.end):
        walk.depths[at] = UNSEEN


@native(inline=True)
def propagate(walk: ptr[Walk], at: u64, depth: i32, frame: i32) -> bool_:
    """Merge a path's state into that at offset `at`, and queue the offset. False if another path has another stack there."""
    if at >= walk.end:
        return True
    if walk.nr_waiting >= MOST_CODE:
        return False
    if walk.depths[at] == UNSEEN:
        walk.depths[at] = depth
        walk.frames[at] = frame
        walk.masks[at] = walk.mask
    elif walk.depths[at] != depth:
        return False
    elif walk.mask & ~walk.masks[at] == 0 and (walk.frames[at] == frame or walk.frames[at] == NONE):
        return True
    else:
        walk.masks[at] |= walk.mask
        walk.frames[at] = frame if walk.frames[at] == frame else cast(i32, NONE)
    walk.waiting[walk.nr_waiting] = cast(u32, at)
    walk.nr_waiting += 1
    return True


@native
def add_entry(entries: ptr[Pointer], count: ptr[u64], register: u64, distance: i64) -> bool_:
    """Add an entry unless it is there. False if the table is full."""
    for index in range(min(count[0], MOST_POINTERS)):
        if entries[index].register == register and entries[index].distance == distance:
            return True
    if count[0] >= MOST_POINTERS:
        return False
    entries[count[0]].register = register
    entries[count[0]].distance = distance
    count[0] += 1
    return True


@native(inline=True)
def note_pointer(walk: ptr[Walk], register: u32, distance: i64) -> bool_:
    """A register may point there. False if the table is full."""
    return add_entry(addressof(walk.pointers[0]), addressof(walk.nr_pointers), cast(u64, register), distance)


@native
def note_lea(walk: ptr[Walk], source: u32, target: u32, displacement: i64) -> bool_:
    """A register is computed from another one. False if the table is full."""
    if displacement == 0:
        walk.copied[cast(u64, source)] |= cast(u32, 1) << target
        return True
    return add_entry(addressof(walk.leas[0]), addressof(walk.nr_leas), cast(u64, source | target << 8), displacement)


@native(inline=True)
def distance_of(walk: ptr[Walk], at: u64, register: u32) -> i32:
    """How far a register is below the return slot, of rsp and rbp; NONE of others."""
    if register == RSP:
        return walk.depths[at]
    return walk.frames[at] if register == RBP else cast(i32, NONE)


@native(inline=True)
def is_known(distance: i32) -> bool_:
    return distance != UNKNOWN and distance != NONE


@native(inline=True)
def moved(distance: i32, amount: i64) -> i32:
    return cast(i32, cast(i64, distance) + amount) if is_known(distance) else distance


@native(inline=True)
def set_stack(walk: ptr[Walk], at: u64, depth: i32, frame: i32) -> bool_:
    """As `propagate`, for a new stack pointer. False if that is above the return slot."""
    if is_known(depth) and depth < 0:
        return False
    return propagate(walk, at, depth, frame)


@native(inline=True)
def bit_of(register: u32) -> u32:
    """In a mask; 0 for NO_REGISTER."""
    return cast(u32, 1) << register & 0xFFFF


@native(inline=True)
def mark(walk: ptr[Walk], register: u32, points: bool_) -> void:
    """From here on, a register may or may not point to a known place in the stack."""
    if points:
        walk.mask |= bit_of(register)
    else:
        walk.mask &= ~bit_of(register)


@native(inline=True)
def slot_of(depth: i32) -> u64:
    return cast(u64, cast(u32, depth) >> 3) & (SLOTS - 1)


@native(inline=True)
def push(walk: ptr[Walk], at: u64, next_at: u64, register: u32) -> bool_:
    """`register`: NO_REGISTER for another operand."""
    depth = walk.depths[at]
    if is_known(depth) and walk.mask & bit_of(register) != 0:
        if walk.unpushed[slot_of(depth)] != 0:
            return False
        walk.pushed[slot_of(depth)] |= bit_of(register)
    return propagate(walk, next_at, moved(depth, 8), walk.frames[at])


@native(inline=True)
def pop(walk: ptr[Walk], at: u64, next_at: u64, register: u32) -> bool_:
    depth = walk.depths[at]
    if register == RSP or (is_known(depth) and depth <= 0):
        return False
    lifted = moved(depth, -8)
    mark(walk, register, False)
    if is_known(depth):
        slot = slot_of(lifted)
        if walk.pushed[slot] != 0:
            walk.popped[slot] |= bit_of(register)
            mark(walk, register, True)
        else:
            walk.unpushed[slot] = 1
    return propagate(walk, next_at, lifted, NONE if register == RBP else walk.frames[at])
