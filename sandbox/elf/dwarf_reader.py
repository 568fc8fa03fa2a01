"""Reading the number encodings of DWARF and unwind tables from memory."""

from __future__ import annotations

import ctypes
import struct

WIDTHS = {0x02: "<h", 0x03: "<i", 0x04: "<q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
"""Format of a number, by the low half of its encoding: udata2..8 and sdata2..8."""
_ULEB128, _PC_RELATIVE, _INDIRECT = 0x01, 0x10, 0x80


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
        """A number in a DW_EH_PE encoding; a null pointer stays null. Raises ValueError for unsupported encodings."""
        here, form = self.position, encoding & 0x0F
        if form == _ULEB128:
            found = self.uleb()
        else:
            layout = WIDTHS.get(form, "<Q" if not form else "")
            if not layout:
                raise ValueError(f"a pointer encoded as {encoding:#x} in an unwind table")
            size = struct.calcsize(layout)
            (found,) = struct.unpack(layout, ctypes.string_at(here, size))
            self.position += size
        if found and encoding & 0x70 == _PC_RELATIVE:
            found += here
        return int(ctypes.c_uint64.from_address(found).value) if found and encoding & _INDIRECT else int(found)
