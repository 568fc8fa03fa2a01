"""Objects that JIT compilers have placed in this process, as the GDB JIT interface lists them."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from sandbox.elf import tables as elf
from sandbox.symbols.table import Symbol, sorted_symbols, with_sizes

_KINDS = (elf.STT_FUNC, elf.STT_GNU_IFUNC)


class JitObject(NamedTuple):
    """An object in place. `entry`: the address of its entry in the list; `functions` by ascending address;

    `names`: every symbol that it defines or refers to; `text`: executable ranges (start, end); `data`: the ELF image;
    `stubs`: addresses of those functions that begin with a stub (sandbox.prepare).
    """

    entry: int
    functions: tuple[Symbol, ...]
    names: frozenset[str]
    text: tuple[tuple[int, int], ...]
    data: bytes
    stubs: frozenset[int] = frozenset()

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and any(start <= address < end for start, end in self.text)


def read_object(entry: int, data: bytes, module: str = "jit") -> JitObject:
    """The object with ELF image `data`; its functions get `module`. Raises ElfError if it is not one for x86-64."""
    file = elf.ElfFile(data)
    text = text_of(file)
    symbols = [pair for table in file.sections_of_type(elf.SHT_SYMTAB) for pair in _symbols(file, table, module)]
    functions = sorted_symbols(with_sizes((symbol for symbol, is_function in symbols if is_function), text))
    stubs = _stubs(file).intersection(symbol.address for symbol in functions)
    return JitObject(entry, functions, frozenset(symbol.name for symbol, _ in symbols), text, data, stubs)


def text_of(file: elf.ElfFile) -> tuple[tuple[int, int], ...]:
    """The executable ranges (start, end) of an object in place."""
    return tuple(
        (section.address, section.address + section.size)
        for section in file.sections
        if section.flags & elf.SHF_EXECINSTR and section.address and section.size
    )


def references(obj: JitObject, function: Symbol) -> set[str]:
    """The names of the symbols that the code of one of its functions refers to by relocations."""
    file, found = elf.ElfFile(obj.data), set()
    for index, relocations in file.relocation_sections().items():
        start = function.address - file.sections[index].address
        if not 0 <= start < file.sections[index].size:
            continue
        table = file.sections[relocations].link
        entries, strings = file.symbols(table), file.strings(table)
        for relocation in file.relocations(relocations):
            if start <= relocation.offset < start + function.size:
                found.add(elf.string_at(strings, entries[relocation.symbol].name_offset))
    return found


def _stubs(file: elf.ElfFile) -> frozenset[int]:
    """The patchable entries of a prepared module. In other modules it is unknown which registers are free there."""
    tables = file.sections_named(elf.PATCHABLE_ENTRIES)
    if not tables:
        return frozenset()
    from sandbox.compile.objectfile import StubError, patchable_stub
    from sandbox.compile.program import MARK

    if not any(MARK.encode() in bytes(file.contents(index)) for index in file.sections_named(".comment")):
        return frozenset()
    relocations = file.relocation_sections()
    entries = [entry for table in file.sections_of_type(elf.SHT_SYMTAB) for entry in file.symbols(table)]
    found = set()
    for table in tables:
        for relocation in file.relocations(relocations[table]) if table in relocations else ():
            target = entries[relocation.symbol]
            with contextlib.suppress(StubError):
                start = patchable_stub(file.contents(target.section), target.value + relocation.addend)
                found.add(file.sections[target.section].address + start)
    return frozenset(found)


def _symbols(file: elf.ElfFile, table: int, module: str) -> list[tuple[Symbol, bool]]:
    """Each named symbol, and whether it is a function of the object's own."""
    strings, found = file.strings(table), []
    for name, info, number, value, size in file.symbols(table):
        if not name or info & 15 == elf.STT_FILE:
            continue
        placed = 0 < number < elf.SHN_LORESERVE or number > elf.SHN_XINDEX
        section = file.sections[number] if placed else None
        base = section.address if section and file.type == elf.ET_REL else 0
        is_code = section is not None and bool(section.flags & elf.SHF_EXECINSTR and section.address)
        label = file.section_name(number) if placed else ""
        symbol = Symbol(elf.string_at(strings, name), base + value, size, module, label)
        found.append((symbol, is_code and info & 15 in _KINDS))
    return found
