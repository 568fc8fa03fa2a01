"""The ends of functions whose symbols have no size, such as the C runtime's, and those of assembly without `.size`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from sandbox.elf import tables as elf
from sandbox.process.once import cached_property

ENCLOSING = 8
"""How many symbols may start inside a function before its end: labels of assembly, aliases."""
_FUNCTIONS = (elf.STT_FUNC, elf.STT_GNU_IFUNC)


class Extents:
    """Answers for one file. `functions`: returns the address and size of each; `sections`: start and end of those with code."""

    def __init__(self, functions: Callable[[], Iterable[tuple[int, int]]], sections: Sequence[tuple[int, int]]) -> None:
        self._read = functions
        self._sections = sections

    @cached_property
    def _functions(self) -> list[tuple[int, int]]:
        return sorted(set(self._read()))

    def end(self, start: int) -> int:
        """The end of the function without a size at `start`: the next one begins there, or its section ends.

        `start` itself if it is a label in another function, or in no code.
        """
        after = bisect_left(self._functions, (start + 1, 0))
        around = self._functions[max(after - ENCLOSING, 0) : after]
        ends = [high for low, high in self._sections if low <= start < high]
        if not ends or any(start < address + size for address, size in around):
            return start
        return min([ends[0], *(address for address, _size in self._functions[after : after + 1])])


def extents_of(file: elf.ElfFile, table: int) -> Extents:
    """The extents by the symbol table in section `table` of a linked file, with the addresses in the file."""
    code = [section for section in file.sections if section.flags & elf.SHF_EXECINSTR]
    return Extents(lambda: _functions_in(file, table), [(each.address, each.address + each.size) for each in code])


def _functions_in(file: elf.ElfFile, table: int) -> Iterable[tuple[int, int]]:
    for _name, info, _other, section, value, size in elf.SYMBOL.iter_unpack(file.contents(table)):
        if section and info & 15 in _FUNCTIONS:
            yield value, size
