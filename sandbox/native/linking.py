"""Links an object of native code into this process: gives its sections memory, and fills in the addresses.

LLVM's linker would do the same, but a process that gets probes from outside need not have LLVM: it takes a hundred megabytes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from sandbox.elf import tables
from sandbox.elf.unwinder import registrars
from sandbox.memory import pages
from sandbox.memory.mappings import release
from sandbox.x86_64.encoding import FAR_JUMP, far_jump

_EXECUTABLE, _WRITABLE, _READ_ONLY = range(3)
_RIGHTS = {
    _EXECUTABLE: pages.PROT_READ | pages.PROT_EXEC,
    _WRITABLE: pages.PROT_READ | pages.PROT_WRITE,
    _READ_ONLY: pages.PROT_READ,
}
_SLOT, _JUMP = 8, 16
_TERMINATOR = 4
"""Zero bytes after the last frame description: the unwinder looks for them."""
_R_32, _R_32S, _R_GOT = 10, 11, frozenset((9, 41, 42))
"""R_X86_64_32, R_X86_64_32S; R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX"""
_FORMS = {
    tables.R_X86_64_64: "<Q",
    _R_32: "<I",
    **dict.fromkeys((_R_32S, *tables.RELATIVE_CALLS, *_R_GOT), "<i"),
}


class LinkedObject:
    """An object in memory of its own, until `close`.

    `addresses`: of the symbols that others may use; `sections`: of its sections, by their numbers.

    `resolve`: the address of a symbol that it has not; None if nobody has it. Raises LookupError for the first of those, OSError
    if memory is refused, OverflowError if a symbol is too far away, ValueError for a relocation that code of ours has not.
    """

    def __init__(self, name: str, data: bytes, resolve: Callable[[str], int | None]) -> None:
        linking = _Linking(name, data, resolve)
        self._start, self._size = linking.start, linking.size
        try:
            self.addresses, self.sections = linking.defined(), linking.sections
            linking.fill()
        except BaseException:
            release(self._start, self._size)
            raise
        self._frames = linking.frames
        if self._frames:
            registrars()[0](self._frames)

    def close(self) -> None:
        """Unmap it. No thread may be in it, or enter it."""
        if self._frames:
            registrars()[1](self._frames)
        release(self._start, self._size)


class _Linking:
    """What is known of an object while it is linked."""

    def __init__(self, name: str, data: bytes, resolve: Callable[[str], int | None]) -> None:
        self._file = tables.ElfFile(data)
        self._resolve, self._name = resolve, name
        (table,) = self._file.sections_of_type(tables.SHT_SYMTAB)
        strings = self._file.strings(table)
        self._symbols = [(tables.string_at(strings, s.name_offset), s) for s in self._file.symbols(table)]
        self._far: dict[str, int] = {}
        """Symbol -> the number of its far address and far jump."""
        self._spans: list[tuple[int, int, int]] = []
        """Offset, size and rights of each part of the memory."""
        self._offsets = self._laid_out()
        self.size = self._spans[-1][0] + self._spans[-1][1]
        self._image = bytearray(self.size)
        self.start = pages.mmap_at(None, self.size, _RIGHTS[_WRITABLE], pages.MAP_PRIVATE | pages.MAP_ANONYMOUS)

    def _laid_out(self) -> dict[int, int]:
        """The offset of each section in the memory. What can be executed is followed by far jumps, the rest by far addresses."""
        far = sum(not symbol.section for _, symbol in self._symbols) + self._words()
        offsets: dict[int, int] = {}
        end = 0
        for kind in _RIGHTS:
            start = end
            for index, section in enumerate(self._file.sections):
                if section.flags & tables.SHF_ALLOC and section.size and _kind_of(section) == kind:
                    end = _up(end, section.alignment)
                    offsets[index] = end
                    end += section.size + _TERMINATOR * (self._file.section_name(index) == ".eh_frame")
            if kind == _EXECUTABLE:
                end = self._jumps_at = _up(end, _JUMP)
                end += far * _JUMP
            elif kind == _READ_ONLY:
                end = self._slots_at = _up(end, _SLOT)
                end += far * _SLOT
            end = _up(end, pages.PAGE)
            if end > start:
                self._spans.append((start, end - start, _RIGHTS[kind]))
        return offsets

    def _words(self) -> int:
        """An upper bound of the symbols of its own whose addresses it reads from words."""
        sections = self._file.sections
        loaded = [n for at, n in self._file.relocation_sections().items() if sections[at].flags & tables.SHF_ALLOC]
        return sum(entry.type in _R_GOT for number in loaded for entry in self._file.relocations(number))

    def defined(self) -> dict[str, int]:
        """The address of each symbol that others may use."""
        return {
            name: self._address_of(name, symbol)
            for name, symbol in self._symbols
            if symbol.info >> 4 != tables.STB_LOCAL and symbol.section
        }

    def _address_of(self, name: str, symbol: tables.ElfSymbol) -> int:
        if symbol.section == tables.SHN_ABS:
            return symbol.value
        if symbol.section:
            return self.start + self._offsets.get(symbol.section, 0) + symbol.value
        found = self._resolve(name) if name else 0
        if found is None and symbol.info >> 4 != tables.STB_WEAK:
            raise LookupError(f"{self._name} refers to {name}, which is not defined in this process")
        return found or 0

    def _number_of(self, name: str, address: int) -> int:
        """The number of the far address and the far jump of a symbol."""
        if name not in self._far:
            number = self._far[name] = len(self._far)
            struct.pack_into("<Q", self._image, self._slots_at + number * _SLOT, address)
            at = self._jumps_at + number * _JUMP
            self._image[at : at + FAR_JUMP] = far_jump(address)
        return self._far[name]

    def fill(self) -> None:
        """Write the sections, with the addresses that they refer to."""
        for index, offset in self._offsets.items():
            contents = self._file.contents(index)
            self._image[offset : offset + len(contents)] = contents
        addresses = [self._address_of(name, symbol) for name, symbol in self._symbols]
        for index, relocations in self._file.relocation_sections().items():
            if index in self._offsets:
                for entry in self._file.relocations(relocations):
                    self._relocate(entry, self._offsets[index] + entry.offset, addresses[entry.symbol])
        ctypes.memmove(self.start, bytes(self._image), len(self._image))
        for start, size, rights in self._spans:
            pages.mprotect(self.start + start, size, rights)

    def _relocate(self, entry: tables.Relocation, at: int, address: int) -> None:
        form = _FORMS.get(entry.type)
        if form is None:
            raise ValueError(f"{self._name} has a relocation of type {entry.type}, which code of ours has not")
        name, symbol = self._symbols[entry.symbol]
        here = self.start + at
        if entry.type in _R_GOT:
            address = self.start + self._slots_at + self._number_of(name, address) * _SLOT
        is_relative = entry.type in tables.RELATIVE_CALLS or entry.type in _R_GOT
        value = address + entry.addend - here * is_relative
        if is_relative and not symbol.section and not -(1 << 31) <= value < 1 << 31:
            jump = self.start + self._jumps_at + self._number_of(name, address) * _JUMP
            value = jump + entry.addend - here
        try:
            struct.pack_into(form, self._image, at, value & (1 << 64) - 1 if form == "<Q" else value)
        except struct.error:
            raise OverflowError(f"{self._name}: {name or 'a section'} is too far from its code") from None

    @property
    def sections(self) -> dict[int, int]:
        """The address of each section."""
        return {index: self.start + offset for index, offset in self._offsets.items()}

    @property
    def frames(self) -> int:
        """The address of what tells the unwinder of the code; 0 if there is none."""
        found = [index for index in self._file.sections_named(".eh_frame") if index in self._offsets]
        return self.start + self._offsets[found[0]] if found else 0


def _kind_of(section: tables.Section) -> int:
    if section.flags & tables.SHF_EXECINSTR:
        return _EXECUTABLE
    return _WRITABLE if section.flags & tables.SHF_WRITE else _READ_ONLY


def _up(offset: int, alignment: int) -> int:
    return -(-offset // max(alignment, 1)) * max(alignment, 1)


_process: Any = ctypes.CDLL(None)


def of_process(name: str) -> int | None:
    """The address of a symbol of this process's libraries; None if none has it."""
    try:
        return ctypes.cast(getattr(_process, name), ctypes.c_void_p).value
    except AttributeError:
        return None
