"""Symbol versions of a shared library: which version of a symbol programs are linked with, and which are there for old programs.

As .gnu.version and .gnu.version_d of the Linux Standard Base say.
"""

from __future__ import annotations

import struct

from sandbox.elf.tables import SHT_DYNSYM, ElfFile, string_at

_SHT_VERDEF, _SHT_VERSYM = 0x6FFFFFFD, 0x6FFFFFFF
_DEFINITION, _NAME = struct.Struct("<HHHHIII"), struct.Struct("<II")
_HIDDEN, _NUMBER = 0x8000, 0x7FFF


def old_versions(file: ElfFile) -> dict[int, str]:
    """Of each entry of the dynamic symbol table that programs are not linked with any more: its version."""
    names = _names(file)
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
