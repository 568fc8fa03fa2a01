"""The functions of a library by its unwind tables, which remain when symbols are stripped.

Reads the sorted table of `.eh_frame_hdr`, and the FDEs that it refers to, from memory.
"""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Set
from ctypes import string_at
from enum import Enum
from typing import NamedTuple

from sandbox.elf import function_starts
from sandbox.elf import tables as elf
from sandbox.elf.dwarf_reader import WIDTHS, Reader
from sandbox.elf.function_starts import referred_to

_VERSION = 1
_PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 0x1B, 0x03, 0x3B
_WORD = 8
_PF_W = 2
_COLD = re.compile(r"\.cold(\.\d+)?$")
_ADVANCE = 0x40
"""DW_CFA_advance_loc, with a distance in the low six bits: what follows is about a later address."""


def table_in_memory(header: int) -> tuple[int, int, int]:
    """Of the .eh_frame_hdr at `header`: what its pairs are relative to, the address of the first one, and their number.

    Zeros if there is none, or it is encoded in a way that no linker of ours uses.
    """
    usual = (_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4)
    if not header or tuple(ctypes.string_at(header, 4)) != usual:
        return 0, 0, 0
    return header, header + 12, ctypes.c_uint32.from_address(header + 8).value


_MOST_KEPT = 1024
"""Entries that are kept: one is asked for several times in a row."""


class FunctionTable:
    """The functions of one library by the table at `header` (address of its .eh_frame_hdr, in this process)."""

    def __init__(self, header: int) -> None:
        self._base, pairs, count = table_in_memory(header)
        self._words = array("i", string_at(pairs, 8 * count) if count else b"")
        self._count = count
        self._cies: dict[int, _Cie] = {}
        self._stretches: dict[int, Stretch] = {}
        """Those that have been requested by an address."""

    def __iter__(self) -> Iterator[Stretch]:
        """The entries of all functions, ascending."""
        return map(self._stretch_of, range(self._count))

    @property
    def starts(self) -> frozenset[int]:
        """The first addresses of the described ranges of code."""
        return frozenset([self._base + offset for offset in self._words[::2]])

    def stretch(self, address: int) -> Stretch | None:
        """The entry for the code around `address`; None if there is none."""
        index = self._after(address) - 1
        if index < 0:
            return None
        if len(self._stretches) > _MOST_KEPT:
            self._stretches.clear()
        stretch = self._stretches.get(index) or self._stretches.setdefault(index, self._stretch_of(index))
        return stretch if address < stretch.end else None

    def following(self, address: int) -> Iterator[Stretch]:
        """The entries that begin after `address`, ascending."""
        return map(self._stretch_of, range(self._after(address), self._count))

    def next_start(self, address: int) -> int | None:
        """The first of the described ranges that begins after `address`; None if there is none."""
        index = self._after(address)
        return self._base + self._words[2 * index] if index < self._count else None

    def _after(self, address: int) -> int:
        """The index of the first entry that begins after `address`."""
        return bisect_right(range(self._count), address - self._base, key=lambda index: self._words[2 * index])

    def bounds(self, address: int) -> tuple[int, int] | None:
        """Start and end of the function that contains `address`; None if there is none."""
        stretch = self.stretch(address)
        return (stretch.start, stretch.end) if stretch is not None else None

    def _stretch_of(self, index: int) -> Stretch:
        start, entry = self._base + self._words[2 * index], self._base + self._words[2 * index + 1]
        at = entry + 4 - ctypes.c_uint32.from_address(entry + 4).value
        cie = self._cies.get(at) or self._cies.setdefault(at, _cie_at(at))
        return _stretch(entry, cie, start)


class Stretch(NamedTuple):
    """A stretch of code [start, end) that an FDE describes: a function, or something else.

    `is_signal_frame`: it is returned to from signal handlers, and never called. `is_as_called`: at its start the stack is as
    after a call.
    """

    start: int
    end: int
    is_signal_frame: bool
    is_as_called: bool


class _Cie(NamedTuple):
    """The properties that FDEs share through their CIE.

    `instructions`: start and end of its own. `width`: the format of the number of bytes that an FDE covers, '' for encodings
    that compilers do not use. `is_as_called`: it alone leaves the stack as after a call.
    """

    width: str
    is_sized: bool
    is_signal_frame: bool
    instructions: tuple[int, int]
    is_as_called: bool


def _cie_at(address: int) -> _Cie:
    length = ctypes.c_uint32.from_address(address).value
    found = _augmentation(ctypes.string_at(address + 8, max(length - 4, 0)))
    instructions = (address + 8 + found.size, address + 4 + length)
    width = WIDTHS.get(found.encodings.get("R", 0) & 0x0F, "") if found.is_sized else ""
    nothing = Reader(instructions[1])
    as_called = function_starts.is_as_called(Reader(instructions[0]), instructions[1], nothing, instructions[1])
    return _Cie(width, found.is_sized, found.is_signal_frame, instructions, as_called)


_HEAD = 32
"""Bytes of an FDE in which its own instructions begin, as good as always."""


def _stretch(fde: int, cie: _Cie, start: int) -> Stretch:
    size = struct.calcsize(cie.width or "<Q")
    whole = ctypes.c_uint32.from_address(fde).value + 4
    head = ctypes.string_at(fde, min(whole, _HEAD))
    covered = int.from_bytes(head[8 + size : 8 + 2 * size], "little") if cie.width else 0
    at = 8 + 2 * size
    if cie.is_sized and at < len(head) and head[at] < 0x80:
        at += 1 + head[at]
        if at < len(head) and head[at] & 0xC0 == _ADVANCE:
            return Stretch(start, start + covered, cie.is_signal_frame, cie.is_as_called)
        if whole <= _HEAD:
            return Stretch(start, start + covered, cie.is_signal_frame, _applied(cie, head[at:]))
    return Stretch(start, start + covered, cie.is_signal_frame, _is_as_called(fde, 8 + 2 * size, cie))


@functools.lru_cache(maxsize=1024)
def _applied(cie: _Cie, instructions: bytes) -> bool:
    """The same for an FDE with these instructions, cached: most are alike."""
    memory = ctypes.create_string_buffer(instructions, len(instructions) or 1)
    begin = ctypes.addressof(memory)
    initial = Reader(cie.instructions[0])
    return function_starts.is_as_called(initial, cie.instructions[1], Reader(begin), begin + len(instructions))


def _is_as_called(fde: int, after_range: int, cie: _Cie) -> bool:
    own = Reader(fde + after_range)
    if cie.is_sized:
        size = own.uleb()
        own.position += size
    end_of_own = fde + 4 + ctypes.c_uint32.from_address(fde).value
    return function_starts.is_as_called(Reader(cie.instructions[0]), cie.instructions[1], own, end_of_own)


class _Augmentation(NamedTuple):
    """The head of a CIE; `size`: bytes from its version to its instructions.

    `is_sized`: the FDEs have augmentation data, too.
    """

    encodings: dict[str, int]
    is_sized: bool
    is_signal_frame: bool
    size: int


def encodings(cie: int) -> dict[str, int]:
    """How the CIE at this address says that things are encoded, by the letters of its augmentation.

    R: addresses; L: the address of language-specific data.
    """
    length = ctypes.c_uint32.from_address(cie).value
    return _augmentation(ctypes.string_at(cie + 8, max(length - 4, 0))).encodings


@functools.lru_cache(maxsize=256)
def _augmentation(contents: bytes) -> _Augmentation:
    """The same, cached by the head's contents: there are few kinds, and each is read for many functions."""
    memory = ctypes.create_string_buffer(contents)
    begin = ctypes.addressof(memory)
    reader = Reader(begin)
    version = reader.byte()
    augmentation = reader.text().decode("latin-1")
    for _ in range(2 if version == 1 else 3):  # alignments, and the return address register
        reader.uleb()
    if version == 1:
        reader.byte()
    if not augmentation.startswith("z"):
        return _Augmentation({}, False, False, reader.position - begin)
    size = reader.uleb()
    end = reader.position + size - begin
    found = {}
    for letter in augmentation[1:]:
        if letter in "RLP":
            found[letter] = reader.byte()
        if letter == "P":
            reader.value(found[letter] & 0x0F)
    return _Augmentation(found, True, "S" in augmentation, end)


class Kind(Enum):
    """The kind of code that an unwind table describes.

    `suffix` is appended to its name if it has no symbol; `reason` says why its returns cannot be probed.
    """

    FUNCTION = "", ""
    PLT = ".plt", "it is the procedure linkage table, where each entry jumps on to a function of its own"
    SIGNAL_FRAME = ".signal-frame", "signal handlers return to it, and it is never called"
    COLD = ".cold", "it is a part of a function: where it begins the stack is not as a call leaves it"
    UNKNOWN = ".part", "nothing shows that it is a function: it has no symbol, and no call or pointer leads to it"

    def __init__(self, suffix: str, reason: str) -> None:
        self.suffix = suffix
        self.reason = reason


def is_cold(name: str) -> bool:
    """Whether a compiler has named it as a part of a function that is hardly ever run, which it jumps to."""
    return bool(_COLD.search(name))


def linkage_tables(file: elf.ElfFile, base: int) -> tuple[tuple[int, int], ...]:
    """The address ranges (start, end) of the procedure linkage tables of a library that is loaded at `base`."""
    names = (".plt", ".plt.got", ".plt.sec", ".iplt")
    sections = [file.sections[index] for name in names for index in file.sections_named(name)]
    return tuple((base + section.address, base + section.address + section.size) for section in sections)


def pointed_to(file: elf.ElfFile, base: int, among: Set[int]) -> set[int]:
    """The addresses of `among` that the library's code calls or takes, or that its data points to.

    Code is read from the file, so probes do not matter; data is read as the dynamic loader has relocated it.
    """
    found: set[int] = set()
    for segment in file.segments():
        start = base + segment.address
        if segment.type == elf.PT_LOAD and segment.flags & elf.PF_X:
            code = bytes(file.data[segment.offset : segment.offset + segment.file_size])
            found |= referred_to(code, start, among)
        elif segment.type == elf.PT_LOAD and segment.flags & _PF_W:
            first, last = -start % _WORD, (start + segment.file_size) & -_WORD
            found |= among & set(array("Q", string_at(start + first, last - start - first)))
    return found
