"""Where functions begin and end by a library's unwind tables, which are there when its symbols are stripped.

Reads the sorted table of `.eh_frame_hdr` and the FDE that it leads to, as they lie in memory.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Iterator

_VERSION = 1
_PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 0x1B, 0x03, 0x3B
_WIDTHS = {0x02: "<h", 0x03: "<i", 0x04: "<q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
"""Format of an encoded length, by the low half of the encoding: udata2..8 and sdata2..8."""


class FunctionTable:
    """The functions of one library by the table at `header` (address of its .eh_frame_hdr, in this process)."""

    def __init__(self, header: int) -> None:
        version, frame, count, table = ctypes.string_at(header, 4)
        self._header = header
        self._starts: list[int] = []
        self._entries: list[int] = []
        if (version, frame, count, table) == (_VERSION, _PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4):
            number = ctypes.c_uint32.from_address(header + 8).value
            words = (ctypes.c_int32 * (2 * number)).from_address(header + 12)
            self._starts = [header + offset for offset in words[::2]]
            self._entries = [header + offset for offset in words[1::2]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Each function's first address and the first behind it, ascending."""
        for start, entry in zip(self._starts, self._entries, strict=True):
            yield start, start + _range_of(entry)

    def bounds(self, address: int) -> tuple[int, int] | None:
        """The first address of the function that `address` lies in, and the first behind it; None if in none."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        start = self._starts[index]
        end = start + _range_of(self._entries[index])
        return (start, end) if address < end else None


def _range_of(fde: int) -> int:
    """How many bytes an FDE covers; 0 if it is encoded in a way that no compiler of ours uses."""
    back = ctypes.c_uint32.from_address(fde + 4).value
    width = _WIDTHS.get(_encoding(fde + 4 - back) & 0x0F)
    if width is None:
        return 0
    size = struct.calcsize(width)
    return int.from_bytes(ctypes.string_at(fde + 8 + size, size), "little")


def _encoding(cie: int) -> int:
    """How the FDEs of a CIE give addresses: the datum of the letter R in its augmentation."""
    version = ctypes.c_uint8.from_address(cie + 8).value
    augmentation = ctypes.string_at(cie + 9)
    position = _skip_fields(cie + 9 + len(augmentation) + 1, 2 if version == 1 else 3)
    if version == 1:
        position += 1  # the return address register, a byte
    if not augmentation.startswith(b"z"):
        return 0
    position = _skip_fields(position, 1)
    for letter in augmentation[1:]:
        value = ctypes.c_uint8.from_address(position).value
        if letter == ord("R"):
            return value
        position += 1 + (_pointer_size(value) if letter == ord("P") else 0)
    return 0


def _skip_fields(position: int, count: int) -> int:
    """Past `count` LEB128 numbers."""
    for _ in range(count):
        while ctypes.c_uint8.from_address(position).value & 0x80:
            position += 1
        position += 1
    return position


def _pointer_size(encoding: int) -> int:
    width = _WIDTHS.get(encoding & 0x0F)
    return struct.calcsize(width) if width else 8
