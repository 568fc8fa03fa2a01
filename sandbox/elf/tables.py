"""ELF64 tables of an x86-64 object or shared library, read as arrays.

Only what a loader needs, and without work for unused symbols and sections: a program of 50,000 functions with patchable entries
has 100,000 sections. Symbol versions are read as .gnu.version and .gnu.version_d of the Linux Standard Base describe them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

ET_REL, ET_DYN = 1, 3
EM_X86_64 = 62

SHT_NULL, SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA = 0, 1, 2, 3, 4
SHT_DYNAMIC, SHT_NOBITS, SHT_DYNSYM, SHT_INIT_ARRAY, SHT_SYMTAB_SHNDX = 6, 8, 11, 14, 18
PT_LOAD, PF_X = 1, 1
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS = 0x1, 0x2, 0x4, 0x400

STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_SECTION, STT_FILE, STT_COMMON, STT_TLS, STT_GNU_IFUNC = 0, 1, 2, 3, 4, 5, 6, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
PATCHABLE_ENTRIES = "__patchable_function_entries"
"""The section that names the entries that compilers have kept free for a patch."""
SHN_UNDEF, SHN_LORESERVE, SHN_ABS, SHN_COMMON, SHN_XINDEX = 0, 0xFF00, 0xFFF1, 0xFFF2, 0xFFFF

_SHT_VERDEF, _SHT_VERSYM = 0x6FFFFFFD, 0x6FFFFFFF
_DEFINITION, _NAME = struct.Struct("<HHHHIII"), struct.Struct("<II")
_HIDDEN, _NUMBER = 0x8000, 0x7FFF

NAMED_TYPES = frozenset((STT_NOTYPE, STT_OBJECT, STT_FUNC, STT_COMMON, STT_GNU_IFUNC))
"""Symbol types of things that have a name of their own."""

R_X86_64_NONE, R_X86_64_64, R_X86_64_PC32, R_X86_64_PLT32, R_X86_64_RELATIVE = 0, 1, 2, 4, 8
_BOUND = frozenset((6, 7))
"""R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT"""
RELATIVE_CALLS = frozenset((R_X86_64_PC32, R_X86_64_PLT32))
"""Relocation types of a call with a 32-bit displacement."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_RELA = struct.Struct("<QIIq")


class ElfError(ValueError):
    """Bytes that are not the ELF file they should be."""


class Section(NamedTuple):
    """A section header. Offsets, sizes and addresses in bytes."""

    name_offset: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Segment(NamedTuple):
    """A program header. Offsets, sizes and addresses in bytes."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int


class ElfSymbol(NamedTuple):
    """A symbol table entry.

    `info` is the STB value << 4 | the STT value; `section` an index (after SHN_XINDEX) or a reserved SHN value.
    """

    name_offset: int
    info: int
    section: int
    value: int
    size: int


class Relocation(NamedTuple):
    """A RELA entry: `symbol` is an index into the symbol table."""

    offset: int
    type: int
    symbol: int
    addend: int


class ElfFile:
    """The tables of an ELF64 little-endian x86-64 file held in memory.

    Raises ElfError if `data` is not one, or is cut off.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        try:
            self._read_headers()
        except (struct.error, IndexError) as error:
            raise ElfError(f"the ELF file is truncated to {len(self.data)} bytes: {error}") from None

    def _read_headers(self) -> None:
        magic = bytes(self.data[:6])
        if magic != b"\x7fELF\x02\x01":
            raise ElfError(f"not an ELF64 little-endian file: it starts with {magic!r}")
        header = _HEADER.unpack_from(self.data)
        if header[2] != EM_X86_64:
            raise ElfError(f"not for x86-64: machine {header[2]}")
        self.type: int = header[1]
        self.segments_offset: int = header[5]
        self.segments_count: int = header[10]
        self.headers_offset: int = header[6]
        count, names = header[12], header[13]
        first = Section(*_SECTION.unpack_from(self.data, self.headers_offset))
        count = count or first.size
        names = first.link if names == SHN_XINDEX else names
        table = self.data[self.headers_offset : self.headers_offset + count * _SECTION.size]
        self.sections = [Section(*fields) for fields in _SECTION.iter_unpack(table)]
        self._names = bytes(self.contents(names))

    def segments(self) -> list[Segment]:
        """The program headers."""
        start = self.segments_offset
        table = self.data[start : start + self.segments_count * _SEGMENT.size]
        return [Segment(*fields) for fields in _SEGMENT.iter_unpack(table)]

    def contents(self, index: int) -> memoryview:
        """The bytes of section `index`; empty for sections without any."""
        section = self.sections[index]
        if section.type == SHT_NOBITS:
            return self.data[:0]
        return self.data[section.offset : section.offset + section.size]

    def section_name(self, index: int) -> str:
        return string_at(self._names, self.sections[index].name_offset)

    def sections_named(self, name: str) -> list[int]:
        """Indices of all sections called `name`, in file order."""
        encoded = name.encode() + b"\0"
        names = self._names
        return [i for i, section in enumerate(self.sections) if names.startswith(encoded, section.name_offset)]

    def sections_of_type(self, kind: int) -> list[int]:
        """Indices of all sections with SHT value `kind`, in file order."""
        return [i for i, section in enumerate(self.sections) if section.type == kind]

    def symbols(self, table: int) -> list[ElfSymbol]:
        """The entries of the symbol table in section `table`."""
        extended = self._extended_indices(table)
        entries = []
        for i, (name, info, _, section, value, size) in enumerate(SYMBOL.iter_unpack(self.contents(table))):
            if section == SHN_XINDEX:
                section = extended[i]
            entries.append(ElfSymbol(name, info, section, value, size))
        return entries

    def _extended_indices(self, table: int) -> memoryview:
        for index in self.sections_of_type(SHT_SYMTAB_SHNDX):
            if self.sections[index].link == table:
                return memoryview(bytes(self.contents(index))).cast("I")
        return memoryview(b"").cast("I")

    def strings(self, table: int) -> bytes:
        """The string table that belongs to the symbol table in section `table`."""
        return bytes(self.contents(self.sections[table].link))

    def relocations(self, index: int) -> Iterator[Relocation]:
        """The entries of the RELA section `index`."""
        for offset, kind, symbol, addend in _RELA.iter_unpack(self.contents(index)):
            yield Relocation(offset, kind, symbol, addend)

    def relocation_sections(self) -> dict[int, int]:
        """Section index -> index of the RELA section that applies to it."""
        return {self.sections[i].info: i for i in self.sections_of_type(SHT_RELA)}


def string_at(table: bytes, offset: int) -> str:
    """The NUL-terminated string at `offset` of a string table."""
    return table[offset : table.index(b"\0", offset)].decode("utf-8", "surrogateescape")


def drop_relocation(data: bytearray, section: Section, number: int) -> None:
    """Turn entry `number` of the RELA section `section` into R_X86_64_NONE, in place."""
    struct.pack_into("<II", data, section.offset + number * _RELA.size + 8, R_X86_64_NONE, 0)


def drop_section(data: bytearray, file: ElfFile, index: int) -> None:
    """Make section `index` SHT_NULL and unallocated, in place, so that nothing links it."""
    struct.pack_into("<IQ", data, file.headers_offset + index * _SECTION.size + 4, SHT_NULL, 0)


def placed(data: bytes, addresses: Mapping[int, int]) -> bytes:
    """A relocatable object with its sections at `addresses` (section index -> address), as a debugger wants it."""
    image = bytearray(data)
    headers_offset = _HEADER.unpack_from(image)[6]
    for index, address in addresses.items():
        struct.pack_into("<Q", image, headers_offset + index * _SECTION.size + 16, address)
    return bytes(image)


def imports(file: ElfFile) -> Iterator[tuple[int, str]]:
    """The address of each word that the dynamic linker fills with a symbol's, in the file, and the symbol's name."""
    for index in file.sections_of_type(SHT_RELA):
        table = file.sections[index].link
        if file.sections[table].type == SHT_DYNSYM:
            names = [name for name, *_ in SYMBOL.iter_unpack(file.contents(table))]
            strings = file.strings(table)
            for offset, kind, symbol, _ in _RELA.iter_unpack(file.contents(index)):
                if symbol and kind in _BOUND:
                    yield offset, string_at(strings, names[symbol])


def load_base(handle: int) -> int:
    """The load address of the library with this dlopen handle: the first word of the loader's `struct link_map`."""
    return ctypes.c_uint64.from_address(handle).value


def old_versions(file: ElfFile) -> dict[int, str]:
    """The versions of symbols that programs are no longer linked with, by index in the dynamic symbol table."""
    names = _names(file)
    if not names:
        return {}
    return {
        index: names[word & _NUMBER]
        for index, word in enumerate(_words(file))
        if word & _HIDDEN and word & _NUMBER in names
    }


def default_versions(file: ElfFile, symbol: str) -> set[str]:
    """The version of `symbol` with which programs are linked; empty if it has none."""
    words, names, found = _words(file), _names(file), set()
    for table in file.sections_of_type(SHT_DYNSYM) if words else ():
        strings = file.strings(table)
        for entry, word in zip(file.symbols(table), words, strict=False):
            if not word & _HIDDEN and word in names and string_at(strings, entry.name_offset) == symbol:
                found.add(names[word])
    return found


def _words(file: ElfFile) -> memoryview:
    tables = file.sections_of_type(_SHT_VERSYM)
    return memoryview(bytes(file.contents(tables[0]) if tables else b"")).cast("H")


def _names(file: ElfFile) -> dict[int, str]:
    """The versions that the library defines, by number."""
    found: dict[int, str] = {}
    for table in file.sections_of_type(_SHT_VERDEF):
        data, strings, at, following = bytes(file.contents(table)), file.strings(table), 0, 1
        while following:
            _, _, number, _, _, name, following = _DEFINITION.unpack_from(data, at)
            found[number] = string_at(strings, _NAME.unpack_from(data, at + name)[0])
            at += following
    return found
