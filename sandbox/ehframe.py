"""Where functions begin and end by a library's unwind tables, which are there when its symbols are stripped.

Reads the sorted table of `.eh_frame_hdr` and the FDE that it leads to, as they lie in memory.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from bisect import bisect_right
from collections.abc import Iterator

_VERSION = 1
_PCREL_SDATA4, _UDATA4, _DATAREL_SDATA4 = 0x1B, 0x03, 0x3B
_WIDTHS = {0x02: "<h", 0x03: "<i", 0x04: "<q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
"""Format of a number, by the low half of its encoding: udata2..8 and sdata2..8."""
_ULEB128, _PC_RELATIVE, _INDIRECT = 0x01, 0x10, 0x80


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


class Reader:
    """Reads numbers as they are written in unwind tables. `position`: the address of the next one."""

    def __init__(self, position: int) -> None:
        self.position = position

    def byte(self) -> int:
        """An unsigned byte."""
        self.position += 1
        return int(ctypes.c_uint8.from_address(self.position - 1).value)

    def uleb(self) -> int:
        """A LEB128 number, read as an unsigned one."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def text(self) -> bytes:
        """Up to a zero byte, which is passed."""
        found = ctypes.string_at(self.position)
        self.position += len(found) + 1
        return found

    def value(self, encoding: int) -> int:
        """A number encoded as DW_EH_PE says; a pointer that is null stays so. Raises ValueError for what nobody writes."""
        here, form = self.position, encoding & 0x0F
        if form == _ULEB128:
            found = self.uleb()
        else:
            layout = _WIDTHS.get(form, "<Q" if not form else "")
            if not layout:
                raise ValueError(f"a pointer encoded as {encoding:#x} in an unwind table")
            size = struct.calcsize(layout)
            (found,) = struct.unpack(layout, ctypes.string_at(here, size))
            self.position += size
        if found and encoding & 0x70 == _PC_RELATIVE:
            found += here
        return int(ctypes.c_uint64.from_address(found).value) if found and encoding & _INDIRECT else int(found)


def _range_of(fde: int) -> int:
    """How many bytes an FDE covers; 0 if it is encoded in a way that no compiler of ours uses."""
    back = ctypes.c_uint32.from_address(fde + 4).value
    width = _WIDTHS.get(encodings(fde + 4 - back).get("R", 0) & 0x0F)
    if width is None:
        return 0
    size = struct.calcsize(width)
    return int.from_bytes(ctypes.string_at(fde + 8 + size, size), "little")


def encodings(cie: int) -> dict[str, int]:
    """How the CIE at this address says that things are encoded, by the letters of its augmentation: R addresses, L the

    address of language-specific data.
    """
    length = ctypes.c_uint32.from_address(cie).value
    return _encodings(ctypes.string_at(cie + 8, max(length - 4, 0)))


@functools.lru_cache(maxsize=256)
def _encodings(contents: bytes) -> dict[str, int]:
    """The same by what stands behind the CIE's head: there are few kinds, and each is read for very many functions."""
    memory = ctypes.create_string_buffer(contents)
    reader = Reader(ctypes.addressof(memory))
    version = reader.byte()
    augmentation = reader.text().decode("latin-1")
    for _ in range(2 if version == 1 else 3):  # alignments, and the return address register
        reader.uleb()
    if version == 1:
        reader.byte()
    if not augmentation.startswith("z"):
        return {}
    reader.uleb()
    found = {}
    for letter in augmentation[1:]:
        if letter in "RLP":
            found[letter] = reader.byte()
        if letter == "P":
            reader.value(found[letter] & 0x0F)
    return found
