"""Source lines of addresses, for crash reports and listings of code with debug information."""

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
    """Code that is in place, and the file whose line table describes it, which is read when it is needed.

    `start`, `end`: addresses; `base`: the address of what is at 0 for the line table.
    """

    def __init__(self, image: bytes, start: int, end: int, base: int) -> None:
        self.start, self.end, self._base = start, end, base
        self._image = image
        self._table: LineTable | None = None

    def at(self, address: int) -> SourceLine | None:
        import linecache

        from sandbox.elf.linetable import LineTable

        if self._table is None:
            self._table = LineTable(self._image)
        place = self._table.at(address - self._base)
        return place and SourceLine(place.file, place.line, linecache.getline(place.file, place.line).strip())


_code: dict[str, _Code] = {}


def add(module: str, image: bytes) -> None:
    """Make the lines of `module` known; `image` is its object, with .text at the address where that is (`elf.placed`).

    Nothing happens for an object without line tables.
    """
    file = elf.ElfFile(image)
    text = [file.sections[index] for index in file.sections_named(".text")]
    if len(text) == 1 and file.sections_named(".debug_line"):
        start = text[0].address
        _code[module] = _Code(image, start, start + text[0].size, start)


def add_shared_object(module: str, data: bytes, base: int) -> None:
    """Make the lines of `module` known; `data` is its file, `base` the address that was added to those in it.

    Nothing happens for a file without line tables.
    """
    file = elf.ElfFile(data)
    code = [section for section in file.sections if section.flags & elf.SHF_EXECINSTR]
    if code and file.sections_named(".debug_line"):
        start, end = min(each.address for each in code), max(each.address + each.size for each in code)
        _code[module] = _Code(data, base + start, base + end, base)


def remove(module: str) -> None:
    """Forget the lines of `module`, if there are any."""
    _code.pop(module, None)


def at(address: int) -> SourceLine | None:
    """The line that the instruction at `address` comes from; None if nothing is known of it."""
    for code in list(_code.values()):
        if code.start <= address < code.end:
            return code.at(address)
    return None
