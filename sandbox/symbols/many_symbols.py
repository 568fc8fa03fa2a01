"""The symbols in the code of a library that has very many: by name and by address, without an object for each.

A pass over a column of 500,000 entries takes hundredths of a second; an object for each takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain

from sandbox.compile import cache
from sandbox.elf import tables as elf
from sandbox.elf.debug_files import build_id
from sandbox.elf.extents import ENCLOSING
from sandbox.elf.symbol_search import column, entry_at
from sandbox.elf.tables import old_versions
from sandbox.symbols.demangling import demanglers
from sandbox.symbols.symbol_tables import Entries
from sandbox.symbols.table import Symbol

Tables = Callable[[], tuple[elf.ElfFile, int]]
"""tables(): a library's file with symbols, and the section of their table."""
Read = Callable[[Callable[[elf.ElfFile, int], Entries]], tuple[Symbol, ...]]
"""read(entries): the library's symbols among `entries(file, table)`."""
Choose = Callable[[Sequence[str]], Sequence[int]]
"""choose(names): the places of those that are meant."""
_EDITION = "1"
"""Another one when other names answer a question."""
_WANTED = (elf.STT_FUNC, elf.STT_OBJECT)
_KEPT = 4096
"""Addresses of which is kept what is around them: code that is examined leads to the same functions again and again."""
_PART = 4
"""Of a quarter of all and more it is better to have an object for each."""


class ManySymbols:
    """The symbols in the sections `.text*` of a library that is loaded at `base`.

    All methods raise OSError if the file cannot be read.
    """

    def __init__(self, base: int, tables: Tables, read: Read) -> None:
        self._base, self._tables, self._read = base, tables, read
        file, table = tables()
        text = {at for at in range(len(file.sections)) if file.section_name(at).startswith(".text")}
        fields = zip(column(file, table, "B", 4), column(file, table, "H", 6), strict=True)
        found = [index for index, (info, section) in enumerate(fields) if section in text and info & 15 in _WANTED]
        values = column(file, table, "Q", 8)
        found.sort(key=values.__getitem__)
        self._around = dict[int, tuple[Symbol, ...]]()
        self._indexes, self._values = array("I", found), array("Q", map(values.__getitem__, found))

    @property
    def starts(self) -> Set[int]:
        """The addresses at which they begin."""
        return {self._base + value for value in self._values}

    def next_start(self, address: int) -> int | None:
        """The first address after this one at which one begins; None if there is none."""
        at = bisect_right(self._values, address - self._base)
        return self._base + self._values[at] if at < len(self._values) else None

    def beginning_at(self, addresses: Set[int]) -> tuple[Symbol, ...]:
        """Those that begin at these addresses, ascending."""
        values = [address - self._base for address in sorted(addresses)]
        places = (range(bisect_left(self._values, each), bisect_right(self._values, each)) for each in values)
        return self._at(chain.from_iterable(places))

    def around(self, address: int) -> tuple[Symbol, ...]:
        """Those that begin at the address or, if it is not the start of a function, as many before it as may contain it."""
        if address not in self._around:
            if len(self._around) >= _KEPT:
                self._around.clear()
            self._around[address] = self._read_around(address - self._base)
        return self._around[address]

    def _read_around(self, value: int) -> tuple[Symbol, ...]:
        first, end = bisect_left(self._values, value), bisect_right(self._values, value)
        lowest = max(end - ENCLOSING, 0)
        exact = self._at(range(max(first, lowest), end)) if first < end else ()
        return exact if any(symbol.size for symbol in exact) else self._at(range(lowest, end))

    def chosen(self, choose: Choose, question: str) -> tuple[Symbol, ...] | None:
        """Those whose names `choose` gives, by their places in the list of all names; None if they are a quarter or more.

        What has the same `question` has the same answer, which is kept for other processes.
        """
        places = self._answer(choose, question)
        return self._at(places) if len(places) * _PART < len(self._indexes) else None

    def _answer(self, choose: Choose, question: str) -> Sequence[int]:
        file, _ = self._tables()
        identity, kept = build_id(file), cache.default_cache()
        key = cache.key("symbols", _EDITION, identity, str(len(self._indexes)), demanglers(), question)
        stored = kept.get(key) if identity else None
        if stored is None:
            stored = array("I", choose(self._names())).tobytes()
            if identity and not cache.shipped:  # the home of a process that is attached to is left as it is
                kept.put(key, stored)
        return array("I", stored)

    def _names(self) -> list[str]:
        """The names of all, with `@VERSION` if programs are not linked with that version any more."""
        file, table = self._tables()
        column_of_names = column(file, table, "I", 0)
        offsets = (column_of_names[index] for index in self._indexes)
        try:  # one text for all: in ASCII its offsets are those of bytes
            strings = str(file.contents(file.sections[table].link), "ascii")
            found = [strings[at : strings.index("\0", at)] for at in offsets]
        except UnicodeDecodeError:
            encoded = file.strings(table)
            found = [elf.string_at(encoded, at) for at in offsets]
        old = old_versions(file) if file.sections[table].type == elf.SHT_DYNSYM else {}
        found = [name.partition("@@")[0] for name in found]
        return [f"{name}@{old[at]}" if at in old else name for at, name in zip(self._indexes, found, strict=True)]

    def _at(self, places: Iterable[int]) -> tuple[Symbol, ...]:
        indexes = [self._indexes[place] for place in places]
        return self._read(lambda file, table: [entry_at(file, table, index) for index in indexes])
