"""The functions and variables in the symbol tables of ELF files: all, or some entries of a table."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator

from sandbox.elf import symbol_search
from sandbox.elf import tables as elf
from sandbox.elf.extents import ENCLOSING
from sandbox.elf.tables import old_versions
from sandbox.symbols.table import Symbol, sorted_symbols

Entries = Iterable[tuple[int, elf.ElfSymbol]]
"""Entries of a symbol table, each with its index."""
_WANTED = (elf.STT_FUNC, elf.STT_OBJECT, elf.STT_GNU_IFUNC)


def read_symbols(data: bytes, base: int, module: str) -> tuple[Symbol, ...]:
    """The functions and variables in the symbol table of a shared library, by ascending address.

    `base` is its load address. Raises elf.ElfError if `data` is not an ELF file.
    """
    return sorted_symbols(symbols_of(elf.ElfFile(data), base, module))


def all_entries(file: elf.ElfFile, table: int) -> Entries:
    """All of a table."""
    return enumerate(file.symbols(table))


def entries_before(file: elf.ElfFile, table: int, offset: int) -> Entries:
    """As many of those that begin at `offset` or before as `locate` looks at, and all that begin where they do."""
    starts = {
        value
        for name, info, _, section, value, _ in _unpacked(file, table)
        if value <= offset and name and 0 < section < elf.SHN_LORESERVE and info & 15 in _WANTED
    }
    first = min(heapq.nlargest(ENCLOSING, starts), default=offset)
    return [(index, _entry(*raw)) for index, raw in enumerate(_unpacked(file, table)) if first <= raw[4] <= offset]


def _unpacked(file: elf.ElfFile, table: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """The entries of a symbol table in their binary form, without an object for each."""
    return elf.SYMBOL.iter_unpack(file.contents(table))


def _entry(name: int, info: int, _other: int, section: int, value: int, size: int) -> elf.ElfSymbol:
    return elf.ElfSymbol(name, info, section, value, size)


def _is_wanted(entry: elf.ElfSymbol) -> bool:
    return 0 < entry.section < elf.SHN_LORESERVE and entry.info & 15 in _WANTED


def symbols_of(
    file: elf.ElfFile, base: int, module: str, entries: Callable[[elf.ElfFile, int], Entries] = all_entries
) -> Iterator[Symbol]:
    """The functions and variables among `entries(file, table)`, for the table of `table_of`. `base`: the load address."""
    table = table_of(file)
    if not table:
        return
    labels = dict[int, str]()
    found = entries(file, table)
    wanted = ((index, entry) for index, entry in found if _is_wanted(entry))
    chosen = list(wanted) if isinstance(found, list) else wanted
    for name, (_, info, section, value, size) in named_entries(file, table, chosen):
        if name:
            if section not in labels:
                labels[section] = file.section_name(section)
            yield Symbol(name, base + value, size, module, labels[section], info & 15 == elf.STT_GNU_IFUNC)


def table_of(file: elf.ElfFile) -> int:
    """The section with the full symbol table, else with the dynamic one; 0 if there is none."""
    return next(iter(file.sections_of_type(elf.SHT_SYMTAB) or file.sections_of_type(elf.SHT_DYNSYM)), 0)


def named_entries(file: elf.ElfFile, table: int, entries: Entries) -> Iterator[tuple[str, elf.ElfSymbol]]:
    """The symbols of a table, with `@VERSION` in the names of those that programs are not linked with any more."""
    is_few = isinstance(entries, list)
    strings = b"" if is_few else file.strings(table)
    old = old_versions(file) if file.sections[table].type == elf.SHT_DYNSYM else {}
    for index, entry in entries:
        whole = symbol_search.name_of(file, table, entry) if is_few else elf.string_at(strings, entry.name_offset)
        name = whole.partition("@@")[0]
        yield (f"{name}@{old[index]}" if index in old else name), entry
