"""Starts and ends of functions from a library's unwind tables, which remain when symbols are stripped.

Reads the sorted table of `.eh_frame_hdr`, and the FDEs that it refers to, from memory.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from sandbox.elf.dwarf_reader import WIDTHS, Reader
from sandbox.x86_64 import entry_frame

_VERSION = 1
_PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 0x1B, 0x03, 0x3B


def table_in_memory(header: int) -> tuple[int, int, int]:
    """Of the .eh_frame_hdr at `header`: what its pairs are relative to, the address of the first one, and their number.

    Zeros if there is none, or it is encoded in a way that no linker of ours uses.
    """
    usual = (_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4)
    if not header or tuple(ctypes.string_at(header, 4)) != usual:
        return 0, 0, 0
    return header, header + 12, ctypes.c_uint32.from_address(header + 8).value


class FunctionTable:
    """The functions of one library by the table at `header` (address of its .eh_frame_hdr, in this process)."""

    def __init__(self, header: int) -> None:
        base, pairs, count = table_in_memory(header)
        words = list((ctypes.c_int32 * (2 * count)).from_address(pairs)) if count else []
        self._starts = [base + offset for offset in words[::2]]
        self._entries = [base + offset for offset in words[1::2]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each function's start and end, ascending."""
        for start, entry in zip(self._starts, self._entries, strict=True):
            yield start, start + _range_of(entry)

    @property
    def starts(self) -> frozenset[int]:
        """Where the stretches of code begin."""
        return frozenset(self._starts)

    def stretch(self, address: int) -> Stretch | None:
        """What the table says of the code around `address`; None if nothing."""
        bounds = self.bounds(address)
        if bounds is None:
            return None
        return _stretch(self._entries[bisect_right(self._starts, address) - 1], *bounds)

    def bounds(self, address: int) -> tuple[int, int] | None:
        """Start and end of the function that contains `address`; None if there is none."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        end = start + _range_of(self._entries[index])
        return (start, end) if address < end else None


class Stretch(NamedTuple):
    """A stretch of code [start, end) that an FDE describes: a function, or something else.

    `is_signal_frame`: it is returned to from signal handlers, and never called. `is_as_called`: at its start the stack is as
    after a call.
    """

    start: int
    end: int
    is_signal_frame: bool
    is_as_called: bool


def _range_of(fde: int) -> int:
    """The number of bytes that an FDE covers; 0 for encodings that compilers do not use."""
    back = ctypes.c_uint32.from_address(fde + 4).value
    width = WIDTHS.get(encodings(fde + 4 - back).get("R", 0) & 0x0F)
    if width is None:
        return 0
    size = struct.calcsize(width)
    return int.from_bytes(ctypes.string_at(fde + 8 + size, size), "little")


def _stretch(fde: int, start: int, end: int) -> Stretch:
    cie = fde + 4 - ctypes.c_uint32.from_address(fde + 4).value
    length = ctypes.c_uint32.from_address(cie).value
    found = _augmentation(ctypes.string_at(cie + 8, max(length - 4, 0)))
    own = Reader(fde + 8 + 2 * struct.calcsize(WIDTHS.get(found.encodings.get("R", 0) & 0x0F, "<Q")))
    if found.is_sized:
        size = own.uleb()
        own.position += size
    end_of_own = fde + 4 + ctypes.c_uint32.from_address(fde).value
    as_called = entry_frame.is_as_called(Reader(cie + 8 + found.size), cie + 4 + length, own, end_of_own)
    return Stretch(start, end, found.is_signal_frame, as_called)


class _Augmentation(NamedTuple):
    """The head of a CIE; `size`: bytes from its version to its instructions.

    `is_sized`: the FDEs have augmentation data, too.
    """

    encodings: dict[str, int]
    is_sized: bool
    is_signal_frame: bool
    size: int


def encodings(cie: int) -> dict[str, int]:
    """How the CIE at this address says that things are encoded, by the letters of its augmentation: R addresses, L the

    address of language-specific data.
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
