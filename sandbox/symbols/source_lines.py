"""Source lines of addresses, for crash reports of code with debug information."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sandbox.elf import tables as elf

if TYPE_CHECKING:
    from sandbox.elf.linetable import LineTable


class SourceLine(NamedTuple):
    """A line (from 1) of a file, and its text without the space around it; empty if the file cannot be read."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place}: {self.text}" if self.text else place


class _Code:
    """Code that is in place: its section and the object that describes it. The line table is read when it is needed."""

    def __init__(self, image: bytes, section: elf.Section) -> None:
        self.start, self.end = section.address, section.address + section.size
        self._image = image
        self._table: LineTable | None = None

    def at(self, address: int) -> SourceLine | None:
        import linecache

        from sandbox.elf.linetable import LineTable

        if self._table is None:
            self._table = LineTable(self._image)
        place = self._table.at(address - self.start)
        return place and SourceLine(place.file, place.line, linecache.getline(place.file, place.line).strip())


_code: dict[str, _Code] = {}


def add(module: str, image: bytes) -> None:
    """Make the lines of `module` known; `image` is its object, with .text at the address where that is (`elf.placed`).

    Nothing happens for an object without line tables.
    """
    file = elf.ElfFile(image)
    text = [file.sections[index] for index in file.sections_named(".text")]
    if len(text) == 1 and file.sections_named(".debug_line"):
        _code[module] = _Code(image, text[0])


def remove(module: str) -> None:
    """Forget the lines of `module`, if there are any."""
    _code.pop(module, None)


def at(address: int) -> SourceLine | None:
    """The line that the instruction at `address` comes from; None if nothing is known of it."""
    for code in list(_code.values()):
        if code.start <= address < code.end:
            return code.at(address)
    return None
