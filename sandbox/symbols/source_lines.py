"""Source lines of addresses, for crash reports and listings of code with debug information."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.elf import tables as elf

if TYPE_CHECKING:
    from elftools.dwarf.lineprogram import LineProgram


class SourceLine(NamedTuple):
    """A line (from 1) of a file, and its text without the space around it; empty if the file cannot be read."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.text}" if self.text else place


class Code:
    """Code that is in place, and the file whose line table describes it, which is read when it is needed.

    `start`, `end`: addresses; `base`: the address that is 0 in the line table.
    """

    def __init__(self, image: bytes, start: int, end: int, base: int) -> None:
        self.start, self.end, self.base = start, end, base
        self.image = image
        self._table: LineTable | None = None

    def at(self, address: int) -> SourceLine | None:
        import linecache

        if self._table is None:
            self._table = LineTable(self.image)
        place = self._table.at(address - self.base)
        return place and SourceLine(place.file, place.line, linecache.getline(place.file, place.line).strip())


_code: dict[str, Code] = {}


def add(module: str, image: bytes) -> None:
    """Make the lines of `module` known; `image` is its object, with .text at the address where that is (`elf.placed`).

    Nothing happens for an object without line tables.
    """
    file = elf.ElfFile(image)
    text = [file.sections[index] for index in file.sections_named(".text")]
    if len(text) == 1 and file.sections_named(".debug_line"):
        start = text[0].address
        _code[module] = Code(image, start, start + text[0].size, start)


def add_shared_object(module: str, data: bytes, base: int) -> None:
    """Make the lines of `module` known; `data` is its file, `base` the address that was added to those in it.

    Nothing happens for a file without line tables.
    """
    file = elf.ElfFile(data)
    code = [section for section in file.sections if section.flags & elf.SHF_EXECINSTR]
    if code and file.sections_named(".debug_line"):
        start, end = min(each.address for each in code), max(each.address + each.size for each in code)
        _code[module] = Code(data, base + start, base + end, base)


def code_of_modules() -> dict[str, Code]:
    """The code whose lines are known, by the name of the module."""
    return dict(_code)


def remove(module: str) -> None:
    """Forget the lines of `module`, if there are any."""
    _code.pop(module, None)


def at(address: int) -> SourceLine | None:
    """The line that the instruction at `address` comes from; None if nothing is known of it."""
    for code in list(_code.values()):
        if code.start <= address < code.end:
            return code.at(address)
    return None


class Place(NamedTuple):
    """From `offset` in the code on, instructions come from `line` (1-based; 0: from none) of `file`.

    `is_statement`: a breakpoint on the line belongs there.
    """

    offset: int
    file: str
    line: int
    is_statement: bool


class LineTable:
    """The DWARF line table of a relocatable object whose code is in one section, or of a shared object.

    Offsets are from the start of that section, or from the address 0 of the shared object.
    """

    def __init__(self, object_code: bytes) -> None:
        # Where one function's code ends and another's begins, the beginning counts.
        self._places = sorted(_places(object_code), key=lambda place: (place.offset, place.line > 0))

    def at(self, offset: int) -> Place | None:
        """The source position of the instruction at `offset`; None if it is unknown."""
        index = bisect_right(self._places, offset, key=attrgetter("offset")) - 1
        return self._places[index] if index >= 0 and self._places[index].line else None


def _places(object_code: bytes) -> Iterator[Place]:
    from elftools.elf.elffile import ELFFile

    file = ELFFile(io.BytesIO(object_code))
    if not file.has_dwarf_info():
        return
    information = file.get_dwarf_info()
    for unit in information.iter_CUs():
        program = information.line_program_for_CU(unit)
        if program is not None:
            yield from rows(program, compiled_in(unit))


def compiled_in(unit: Any) -> bytes:
    """The directory in which a unit was compiled."""
    directory = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
    return directory.value if directory else b""


def rows(program: LineProgram, directory: bytes) -> Iterator[Place]:
    """What a line program says, in its order. `directory`: see `compiled_in`."""
    files: dict[int, str] = {}
    for entry in program.get_entries():
        state = entry.state
        if state is not None:
            file = files.get(state.file) or files.setdefault(state.file, file_of(program, directory, state.file))
            yield Place(state.address, file, 0 if state.end_sequence else state.line, bool(state.is_stmt))


def file_of(program: LineProgram, directory: bytes, number: int) -> str:
    """The path of the file that has this number in a line program."""
    header: Any = program.header
    is_old = header["version"] < 5  # files and directories count from 1; directory 0 is that of the compilation
    entry = header["file_entry"][number - is_old]
    directories, index = header["include_directory"], entry.dir_index - is_old
    inside = directories[index] if 0 <= index < len(directories) else b""
    return str(Path(os.fsdecode(directory), os.fsdecode(inside), os.fsdecode(entry.name)))
