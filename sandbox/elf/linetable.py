"""Source lines of an object's code."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from elftools.dwarf.lineprogram import LineProgram


class Place(NamedTuple):
    """From `offset` in the code on, instructions come from `line` (1-based; 0: from none) of `file`."""

    offset: int
    file: str
    line: int


class LineTable:
    """The DWARF line table of a relocatable object whose code is in one section, or of a shared object.

    Offsets are from the start of that section, or from the address 0 of the shared object.
    """

    def __init__(self, object_code: bytes) -> None:
        # Where one function's code ends and another's begins, the beginning counts.
        self._places = sorted(_places(object_code), key=lambda place: (place.offset, place.line > 0))

    def at(self, offset: int) -> Place | None:
        """Where the instruction at `offset` comes from; None if nothing is known of it."""
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
            directory = unit.get_top_DIE().attributes.get("DW_AT_comp_dir")
            yield from _rows(program, directory.value if directory else b"")


def _rows(program: LineProgram, directory: bytes) -> Iterator[Place]:
    for entry in program.get_entries():
        state = entry.state
        if state is not None:
            yield Place(state.address, _file(program, directory, state.file), 0 if state.end_sequence else state.line)


def _file(program: LineProgram, compiled_in: bytes, number: int) -> str:
    header: Any = program.header
    is_old = header["version"] < 5  # files and directories count from 1; directory 0 is that of the compilation
    entry = header["file_entry"][number - is_old]
    directories, index = header["include_directory"], entry.dir_index - is_old
    directory = directories[index] if 0 <= index < len(directories) else b""
    return str(Path(os.fsdecode(compiled_in), os.fsdecode(directory), os.fsdecode(entry.name)))
