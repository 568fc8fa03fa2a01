"""Functions of shared libraries, from their DWARF debug information: in the library, or in its debug file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sandbox.elf import debug_files
from sandbox.symbols import exported
from sandbox.symbols.dwarf import definitions, is_changed
from sandbox.symbols.dwarf_entries import is_assembly

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

    from sandbox.symbols.libraries import Library
    from sandbox.symbols.table import Symbol

_KEPT = 4
"""Libraries whose debug information stays in memory."""
_LARGEST = 16 << 20
"""Bytes of .debug_info that are read as a whole where no .debug_aranges says which part describes an address."""


def definition_of(library: Library, function: Symbol) -> DIE | None:
    """The debug information entry that defines a function of a library.

    None if there is no debug information about it, or none that can be read, for clones that take other arguments, and for
    functions in assembly, of which it does not tell the arguments.
    """
    if is_changed(function.name):
        return None
    try:
        information = information_of(library)
        found = information.definition_at(function.address - library.base) if information else None
        return None if found is None or is_assembly(found) else found
    except Exception:  # reading damaged debug information raises anything
        return None


def information_of(library: Library) -> Information | None:
    """The debug information of a library; None if there is none. Raises OSError if its file cannot be read, ValueError."""
    path = library.file.resolve() if library.file == library.path else library.file
    return _information(str(path), path.stat().st_mtime_ns, library.marks)


def absence(library: Library | None, function: str) -> str:
    """Why there is no debug information about a function of a library, as a sentence with what to do."""
    sentence = f"there is no debug information about {function}: compile it with -g, or install its debug file"
    try:
        other = library and debug_files.of_another_build(debug_files.mapped(library.path), library.path)
    except (OSError, ValueError):
        other = None
    return f"{sentence}; {other} is of another build" if other else sentence


class Information:
    """The debug information of one file. `dwarf`: what pyelftools reads of it; `size`: of its .debug_info, in bytes."""

    def __init__(self, dwarf: Any, size: int) -> None:
        self.dwarf = dwarf
        self._size = size
        self._table = dwarf.get_aranges()
        self._found: dict[int, DIE | None] = {}

    def definition_at(self, address: int) -> DIE | None:
        """The entry of the function that begins at an address of the file."""
        if address not in self._found:
            entries = (each for unit in self.units_at(address) for each in definitions(unit.get_top_DIE()))
            self._found[address] = next((die for start, die in entries if start == address), None)
        return self._found[address]

    def units_at(self, address: int) -> Iterable[Any]:
        """The compilation units that may describe an address of the file."""
        if self._table is not None:
            offset = self._table.cu_offset_at_addr(address)
            return [] if offset is None else [self.dwarf.get_CU_at(offset)]
        return self.dwarf.iter_CUs() if self._size <= _LARGEST else []


@lru_cache(maxsize=_KEPT)
def _information(library: str, changed: int, marks: tuple[tuple[int, bytes], ...]) -> Information | None:
    """That of the library at a path, which was last changed at that time; None if it has none. Raises OSError, ValueError.

    `marks`: bytes that it has at some offsets; else it is another one than was loaded, which describes other functions.
    """
    from pathlib import Path

    from elftools.elf.elffile import ELFFile

    own = debug_files.mapped(Path(library))
    is_same = all(own.data[at : at + len(mark)] == mark for at, mark in marks)
    path = debug_files.with_debug_information(own, Path(library)) if is_same else None
    if path is None:
        return None
    file = ELFFile.load_from_path(str(path))
    try:
        dwarf: Any = file.get_dwarf_info()
        if file.get_section_by_name(".gnu_debugaltlink") is not None and dwarf.supplementary_dwarfinfo is None:
            return None  # dwz has moved what several files share into one that is not there
        exported.remember(dwarf, lambda: debug_files.mapped(path))
        return Information(dwarf, dwarf.debug_info_sec.size)
    finally:
        file.close()
