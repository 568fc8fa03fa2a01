"""Writing the detours and stubs of functions without stubs natively, for thousands of them at a time.

The same bytes as `entry_detour` and `preserving_stub` make, for functions whose first instructions `entry_bytes` has read.
"""

from __future__ import annotations

from ftrace.hit.x86_64.entry_detour import BODY, DETOUR_SIZE, HOOKED, HOOKED_SLOW, ROUTINE, SLOT_AT
from ftrace.hit.x86_64.preserving_stub import AFTER_CALL, DROP_RETURN_PRESERVING
from ftrace.hit.x86_64.stubs import RETURN_POINT, SLOT, STUB_SIZE, TO_BODY_BY_CALL
from sandbox.native import *
from sandbox.native.x86_64.entry_bytes import CALL, CONDITIONAL, JUMP, MOST_READ, RELATIVE, NativeEntry
from sandbox.native.x86_64.reading import word_at

CALL_SIZE, JUMP_SIZE, CONDITIONAL_SIZE = 19, 5, 6
"""Bytes of the copies of instructions whose copies have another size than they."""
COPY_SIZES = {CALL: CALL_SIZE, JUMP: JUMP_SIZE, CONDITIONAL: CONDITIONAL_SIZE}


@struct
class Detour(Structure):
    """One to write: for a thread at `where`, through the alias at `alias`. `count`: the instructions that are copied.

    `stub`, `slot`: the addresses of the function's preserving stub and of its probe list; at `routine` lies the address of
    ftrace_entry_preserving_all.
    """

    entry: ptr[NativeEntry]
    where: u64
    alias: u64
    count: u64
    stub: u64
    slot: u64
    routine: u64


@native(inline=True)
def put_words(at: u64, template: ptr[u8], size: u64) -> void:
    to = cast(ptr[u64], at)
    words = cast(ptr[u64], template)
    for index in range(min(size, DETOUR_SIZE) >> 3):
        to[index] = words[index]


@native(inline=True)
def put_distance(at: u64, end: u64, target: u64) -> void:
    """A displacement to `target` in an instruction that ends at `end`."""
    cast(ptr[u32], at)[0] = cast(u32, target - end)


@native
def put_call(alias: u64, to: u64, end: u64, target: u64) -> void:
    """`push` of the return address, which lies after a jump to `target`; the jump."""
    code = cast(ptr[u8], alias)
    code[0] = 0xFF
    code[1] = 0x35
    cast(ptr[u32], alias + 2)[0] = JUMP_SIZE
    code[6] = 0xE9
    put_distance(alias + 7, to + 11, target)
    cast(ptr[u64], alias + 11)[0] = end


@native(inline=True)
def displacement_of(code: ptr[u8], length: u64) -> i64:
    """With which a direct branch ends: of one byte in the short forms."""
    if length >= JUMP_SIZE:
        return word_at(code, length - 4)
    return cast(i64, cast(i8, code[length - 1]))


@native
def put_copy(alias: u64, to: u64, code: ptr[u8], address: u64, length: u64, kind: u64, relative: u64) -> u64:
    """Write a copy of an instruction that has the same effect at `to` as the original at `address`. Returns its size."""
    end = address + length
    if kind != CALL and kind != JUMP and kind != CONDITIONAL:
        for index in range(min(length, 15)):
            cast(ptr[u8], alias)[index] = code[index]
        if kind == RELATIVE:
            put_distance(alias + relative, to + length, end + cast(u64, word_at(code, relative)))
        return length
    target = end + cast(u64, displacement_of(code, length))
    if kind == CALL:
        put_call(alias, to, end, target)
        return CALL_SIZE
    if kind == JUMP:
        cast(ptr[u8], alias)[0] = 0xE9
        put_distance(alias + 1, to + JUMP_SIZE, target)
        return JUMP_SIZE
    opcode = code[length - 2] if length < JUMP_SIZE else code[length - 5]
    cast(ptr[u8], alias)[0] = 0x0F
    cast(ptr[u8], alias)[1] = 0x80 | opcode & 15
    put_distance(alias + 2, to + CONDITIONAL_SIZE, target)
    return CONDITIONAL_SIZE


@native
def put_body(detour: ptr[Detour]) -> void:
    """The copies, and a jump after the instructions."""
    entry = detour.entry
    at: u64 = BODY
    offset: u64 = 0
    for number in range(min(detour.count, MOST_READ)):
        length = cast(u64, entry.lengths[number])
        code = cast(ptr[u8], cast(u64, entry.code) + offset)
        kind = cast(u64, entry.kinds[number])
        relative = cast(u64, entry.relatives[number])
        at += put_copy(detour.alias + at, detour.where + at, code, entry.address + offset, length, kind, relative)
        offset += length
    cast(ptr[u8], detour.alias + at)[0] = 0xE9
    put_distance(detour.alias + at + 1, detour.where + at + JUMP_SIZE, entry.address + offset)


@native
def write_detours(detours: ptr[Detour], count: u64, template: ptr[u8]) -> void:
    """`template`: a whole detour."""
    for index in range(count):
        detour = addressof(detours[index])
        where = detour.where
        alias = detour.alias
        hooked = detour.stub + DROP_RETURN_PRESERVING
        put_words(alias, template, DETOUR_SIZE)
        cast(ptr[u64], alias)[0] = detour.stub + RETURN_POINT
        put_distance(alias + ROUTINE, where + ROUTINE + 4, detour.routine)
        put_distance(alias + HOOKED_SLOW, where + HOOKED_SLOW + 4, hooked)
        put_distance(alias + SLOT_AT, where + SLOT_AT + 4, detour.slot)
        put_distance(alias + HOOKED, where + HOOKED + 4, hooked)
        put_body(detour)


@struct
class Stubs(Structure):
    """The stubs of the sites of a block: from `base` on, through an alias that is `delta` further.

    `bodies`: where the calls of each continue. `slots`: the address of the first site's probe list; at `exit` lies the address of
    ftrace_exit_preserving_all. `template`: a stub.
    """

    base: u64
    delta: u64
    sites: ptr[u64]
    bodies: ptr[u64]
    slots: u64
    exit: u64
    template: ptr[u8]


@native
def write_preserving_stubs(stubs: ptr[Stubs], indexes: ptr[u32], count: u64) -> void:
    """Write the stubs of the sites with these indexes."""
    for position in range(count):
        index = cast(u64, indexes[position])
        where = stubs.base + index * STUB_SIZE
        alias = where + stubs.delta
        put_words(alias, stubs.template, STUB_SIZE)
        cast(ptr[u64], alias)[0] = stubs.sites[index]
        put_distance(alias + TO_BODY_BY_CALL, where + TO_BODY_BY_CALL + 4, stubs.bodies[index])
        put_distance(alias + AFTER_CALL - 4, where + AFTER_CALL, stubs.exit)
        cast(ptr[u64], alias + SLOT)[0] = stubs.slots + 8 * index


FUNCTIONS = (write_detours, write_preserving_stubs)
