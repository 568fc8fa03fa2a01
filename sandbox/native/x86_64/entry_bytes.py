"""The first instructions of functions, read natively for thousands of them at a time.

`decode` gives the same for instructions that are not read here (`Kind.OTHER`), and for single functions.
"""

from __future__ import annotations

import ctypes
import struct as binary
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandbox.native import *
from sandbox.native.x86_64.reading import Read, read, word_at
from sandbox.x86_64.instruction import Flow, Instruction, decode
from sandbox.x86_64.relocate import refuse_to_move

if TYPE_CHECKING:
    from sandbox.native.native_image import NativeImage

REACH = 8
"""The longest jump with prefixes at an entry, in bytes, including the bytes it borrows."""
MOST_READ = 5
"""The number of instructions that are read of a function."""
OTHER, PLAIN, RELATIVE, CALL, JUMP, CONDITIONAL, RETURN = range(7)
"""Kinds of instructions: OTHER is not read here, PLAIN is copied unchanged, RELATIVE has an operand relative to rip."""
_FAR = 1 << 30
"""An instruction that refers to an address so far away is not read: its copy might not reach it."""
_PADDING = 32


@struct
class NativeEntry(Structure):
    """The instructions that begin in the first 8 bytes of a function, up to the first that is not read, and at most 5.

    `entered`: the offsets below 8 that the function's code may jump to, a bit each. `lengths` and `kinds` are 0 after the last.
    `relatives`: the offset in each RELATIVE instruction of its displacement.
    """

    code: ptr[u8]
    address: u64
    entered: u64
    lengths: array[u8, 8]
    kinds: array[u8, 8]
    relatives: array[u8, 8]


@native(inline=True)
def kind_of(insn: ptr[Read]) -> u64:
    """How to copy an instruction."""
    opcode = insn.opcode
    if insn.is_vector:
        return RELATIVE if insn.relative != 0 else PLAIN
    is_jump = opcode == 0xE9 or opcode == 0xEB
    is_conditional = opcode & ~15 == 0x70 or opcode & ~15 == 0x180
    if is_jump or is_conditional or opcode == 0xE8 or opcode == 0xC3:
        if insn.is_word:
            return OTHER
        if opcode == 0xC3:
            return RETURN
        return CALL if opcode == 0xE8 else JUMP if is_jump else CONDITIONAL
    if opcode & ~3 == 0xE0 or opcode == 0x10B or (opcode == 0xFF and insn.extension > 1 and insn.extension < 6):
        return OTHER
    if opcode == 0xC7 and insn.extension == 7:
        return OTHER
    return RELATIVE if insn.relative != 0 else PLAIN


@native(inline=True)
def target_of(entry: ptr[NativeEntry], at: u64, insn: ptr[Read], kind: u64) -> u64:
    """The address that an instruction at this offset names, if it is not PLAIN and no RETURN."""
    end = entry.address + at + insn.length
    if kind == RELATIVE:
        return end + cast(u64, word_at(entry.code, at + insn.relative))
    return end + cast(u64, insn.immediate)


@native
def read_entry(entry: ptr[NativeEntry], size: u64, limits: ptr[u64]) -> void:
    """`limits`: the lowest and the highest address that is named."""
    insn: Read = zeroed
    at: u64 = 0
    for number in range(MOST_READ):
        if at >= REACH or not read(cast(ptr[u8], cast(u64, entry.code) + at), addressof(insn)):
            return
        kind = kind_of(addressof(insn))
        if kind == OTHER or at + insn.length > size:
            return
        if kind != PLAIN and kind != RETURN:
            target = target_of(entry, at, addressof(insn), kind)
            if target - entry.address + _FAR >= 2 * _FAR:
                return
            limits[0] = min(limits[0], target)
            limits[1] = max(limits[1], target)
        entry.lengths[number] = cast(u8, insn.length)
        entry.kinds[number] = cast(u8, kind)
        entry.relatives[number] = cast(u8, insn.relative)
        at += insn.length


@native(inline=True)
def enter(entry: ptr[NativeEntry], at: i64) -> void:
    if at > 0 and at < REACH:
        entry.entered |= cast(u64, 1) << cast(u64, at)


@native
def find_entered(entry: ptr[NativeEntry], size: u64) -> void:
    """All bytes that look like a jump count as one."""
    code = entry.code
    at: u64 = 0
    while at + 1 < size:
        byte = cast(u32, code[at])
        following = cast(u32, code[at + 1])
        at += 1
        if byte & 0xF0 == 0x70 or byte & 0xFC == 0xE0 or byte == 0xEB:
            enter(entry, cast(i64, at) + 1 + (cast(i64, following) ^ 0x80) - 0x80)
        elif byte == 0xE9 and at + 4 <= size:
            enter(entry, cast(i64, at) + 4 + word_at(code, at))
        elif byte == 0x0F and following & 0xF0 == 0x80 and at + 5 <= size:
            at += 1
            enter(entry, cast(i64, at) + 4 + word_at(code, at))


@native
def read_entries(
    entries: ptr[NativeEntry], code: ptr[u8], addresses: ptr[u64], sizes: ptr[u64], count: u64, limits: ptr[u64]
) -> void:
    """Read the entries of consecutive functions, the last one followed by 32 readable bytes."""
    start = cast(u64, code)
    for index in range(count):
        entry = addressof(entries[index])
        entry.code = cast(ptr[u8], start)
        entry.address = addresses[index]
        read_entry(entry, sizes[index], limits)
        find_entered(entry, sizes[index])
        start += sizes[index]


FUNCTIONS = (read_entries,)
_FIELDS = binary.Struct("=16xQ8s8s8x")


class Entries:
    """The entries of functions at `addresses` with this code; at least its first 15 bytes, if the text has as many.

    `low`, `high`: the range of addresses that instructions which are read refer to. `image` has `read_entries`.
    """

    def __init__(self, image: NativeImage, codes: Sequence[bytes], addresses: Sequence[int]) -> None:
        count, at = len(codes), ctypes.addressof
        self._codes, self._addresses = codes, addresses
        self._text = ctypes.create_string_buffer(b"".join(codes), sum(map(len, codes)) + _PADDING)
        self._memory = ctypes.create_string_buffer(NativeEntry.size * count or 1)
        given, sizes = (ctypes.c_uint64 * count)(*addresses), (ctypes.c_uint64 * count)(*map(len, codes))
        limits = (ctypes.c_uint64 * 2)((1 << 64) - 1, 0)
        image.call("read_entries", at(self._memory), at(self._text), at(given), at(sizes), count, at(limits))
        self.low, self.high = limits
        self._fields = list(_FIELDS.iter_unpack(self._memory.raw[: NativeEntry.size * count]))

    def __len__(self) -> int:
        return len(self._codes)

    def __getitem__(self, position: int) -> EntryInstructions:
        entered, lengths, kinds = self._fields[position]
        where = ctypes.addressof(self._memory) + position * NativeEntry.size
        return EntryInstructions(self._codes[position], self._addresses[position], lengths, kinds, entered, where)


class EntryInstructions:
    """One of them. `where`: the address of its NativeEntry."""

    __slots__ = ("_decoded", "address", "code", "entered", "kinds", "lengths", "where")

    def __init__(self, code: bytes, address: int, lengths: bytes, kinds: bytes, entered: int, where: int) -> None:
        self.code = code
        self.address = address
        self.lengths = lengths
        self.kinds = kinds
        self.entered = entered
        self.where = where
        self._decoded: dict[int, Instruction] = {}

    def at(self, number: int, offset: int) -> tuple[int, bool, bool]:
        """For its instruction of this number, which begins at `offset`: length, whether it is a call, whether none follows.

        Raises ValueError if it cannot be moved.
        """
        kind = self.kinds[number] if number < len(self.kinds) else OTHER
        if kind:
            return self.lengths[number], kind == CALL, kind in (JUMP, RETURN)
        insn = self._decode(offset)
        refuse_to_move(insn)
        return insn.length, insn.flow in _CALLS, insn.flow in _ENDS

    def _decode(self, offset: int) -> Instruction:
        known = self._decoded.get(offset)
        if known is None:
            known = self._decoded[offset] = decode(self.code[offset : offset + 15], self.address + offset)
        return known

    def is_read(self, count: int) -> bool:
        """Whether its first `count` instructions are known natively."""
        return all(self.kinds[:count])

    def instructions(self, count: int) -> list[Instruction]:
        """The first `count` of them."""
        found: list[Instruction] = []
        for _ in range(count):
            found.append(self._decode(found[-1].end - self.address if found else 0))
        return found


_CALLS = (Flow.CALL, Flow.INDIRECT_CALL)
_ENDS = (Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RETURN, Flow.TRAP)
