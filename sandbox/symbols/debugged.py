"""The debug information of the modules and libraries in this process, and the functions that it describes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.elf.debug_files import mapped
from sandbox.elf.tables import ElfFile
from sandbox.symbols import exported, source_lines
from sandbox.symbols.dwarf import definitions, may_name, ranges_of
from sandbox.symbols.dwarf_entries import find
from sandbox.symbols.libraries import libraries, library_at
from sandbox.symbols.library_dwarf import Information, information_of
from sandbox.symbols.source_lines import compiled_in, file_of, rows

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

    from sandbox.symbols.libraries import Library

_KEPT = 4
"""Modules whose debug information stays in memory."""


class Debugged(NamedTuple):
    """Code in this process that has debug information. `base`: what is added to the addresses in it."""

    base: int
    information: Information

    def functions_at(self, address: int) -> Iterator[DebuggedFunction]:
        """The function whose code an address is in, as compiled: not the functions that were inlined there."""
        offset = address - self.base
        for unit in self.information.units_at(offset):
            for _, die in definitions(unit.get_top_DIE()):
                if any(start <= offset < end for start, end in ranges_of(die)):
                    yield DebuggedFunction(self, die)


class DebuggedFunction(NamedTuple):
    """A function that debug information describes, and where that is from."""

    code: Debugged
    die: DIE

    @property
    def line(self) -> int:
        """The line of its declaration, which is its first; 0 if that is not known."""
        return find(self.die, "DW_AT_decl_line") or 0

    @property
    def file(self) -> str:
        """The path of its source file; '' if it is not known."""
        program: Any = self.code.information.dwarf.line_program_for_CU(self.die.cu)
        number = find(self.die, "DW_AT_decl_file")
        return "" if program is None or number is None else file_of(program, compiled_in(self.die.cu), number)

    def lines(self) -> dict[int, int]:
        """The lines of its source at which code begins, and the lowest address where: in its main part, if it has two.

        Lines before its first and behind its last are of functions that were inlined.
        """
        inlined = [part for die in _inlined(self.die) for part in ranges_of(die)]
        found: dict[int, int] = {}
        last = 0
        for line, address in sorted(_statements(self, self.file), key=lambda each: self.order(each[1])):
            found.setdefault(line, address)
            if not any(start <= address - self.code.base < end for start, end in inlined):
                last = max(last, line)
        return {line: found[line] for line in sorted(found) if self.line <= line <= last}

    def order(self, address: int) -> tuple[int, int]:
        """By what addresses of its are sorted: first those of the part that it begins with."""
        parts, offset = list(ranges_of(self.die)), address - self.code.base
        return next((index for index, (start, end) in enumerate(parts) if start <= offset < end), len(parts)), address


def _statements(function: DebuggedFunction, file: str) -> Iterator[tuple[int, int]]:
    """The lines of `file` that code of the function is for, with the addresses."""
    parts = list(ranges_of(function.die))
    for place in rows_of(function.code.information, function.die.cu):
        is_wanted = place.is_statement and place.line and place.file == file
        if is_wanted and any(start <= place.offset < end for start, end in parts):
            yield place.line, function.code.base + place.offset


def rows_of(information: Information, unit: Any) -> list[source_lines.Place]:
    """What the line table says of a compilation unit."""
    program: Any = information.dwarf.line_program_for_CU(unit)
    return [] if program is None else list(rows(program, compiled_in(unit)))


def _inlined(scope: DIE) -> Iterator[DIE]:
    """What was inlined in a function, without what was inlined in that."""
    for child in scope.iter_children():
        if child.tag == "DW_TAG_inlined_subroutine":
            yield child
        elif child.tag == "DW_TAG_lexical_block":
            yield from _inlined(child)


def compiled_from(name: str) -> Iterator[Debugged]:
    """The modules and libraries that may have been compiled from a file of that name, and have their debug information in them.

    Those with a debug file are left out: they are the distribution's, and to read all of these takes seconds.
    """
    text = os.fsencode(name)
    code = [each for each in source_lines.code_of_modules().values() if may_name(ElfFile(each.image), text)]
    modules = [found for each in code if (found := _of_module(each.image, each.base))]
    yield from modules
    known = {each.base for each in modules}
    for library in libraries():
        if library.base not in known and _may_have(library, text) and (found := _of_library(library)):
            yield found


def _may_have(library: Library, name: bytes) -> bool:
    """Whether the debug information in a library's file may name a source file so."""
    try:
        file = mapped(library.path)
        return bool(file.sections_named(".debug_info")) and may_name(file, name)
    except (OSError, ValueError):
        return False


def debugged_at(address: int) -> Debugged | None:
    """The debug information about the module or library that has code at an address; None if there is none."""
    for code in source_lines.code_of_modules().values():
        if code.start <= address < code.end:
            return _of_module(code.image, code.base)
    library = library_at(address)
    return _of_library(library) if library is not None else None


def function_at(address: int) -> DebuggedFunction | None:
    """The function that has code at an address; None if there is no debug information about it."""
    code = debugged_at(address)
    return next(code.functions_at(address), None) if code is not None else None


def _of_library(library: Library) -> Debugged | None:
    try:
        information = information_of(library)
    except Exception:  # reading damaged debug information raises anything
        return None
    return Debugged(library.base, information) if information is not None else None


@lru_cache(maxsize=_KEPT)
def _of_module(image: bytes, base: int) -> Debugged | None:
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(image))
    if not file.has_dwarf_info():
        return None
    dwarf: Any = file.get_dwarf_info()
    exported.remember(dwarf, lambda: ElfFile(image))
    return Debugged(base, Information(dwarf, dwarf.debug_info_sec.size))
