"""The shared libraries of the process, and the program itself, as images.

Where symbols are stripped, unwind tables say where functions begin; those without a name are called `library+0xoffset`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import TYPE_CHECKING

from sandbox.elf.ehframe import Kind, Stretch, is_cold
from sandbox.images import process_text
from sandbox.images.image import Image, Source
from sandbox.process.fork import giving_way
from sandbox.process.once import cached_property
from sandbox.symbols.file_names import is_in_folder
from sandbox.symbols.libraries import Library, libraries
from sandbox.symbols.table import Symbol, sorted_symbols

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping


_LLVM = "llvm"
"""Part of the name of llvmlite's library. This package loads it to compile: five times as many functions as a program's own."""
_OWN = (_LLVM, "capstone")
"""Parts of the paths of libraries that this package needs."""

_FEW = 64
"""The number of addresses that are searched for one by one in a library of very many functions."""


class LibraryImage(Image):
    """A shared library: called `libz`, `libz.so.1`, or as the file that the link leads to."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.name = library.name
        self.names = library.forms
        self.only_by = _LLVM if _LLVM in self.name else ""
        self.is_own = any(package in part for part in library.path.parts for package in _OWN)

    @cached_property
    def functions(self) -> Sequence[Symbol]:
        named = self._in_text(self.library.symbols)
        starts = {symbol.address for symbol in named if not symbol.indirect}
        return sorted_symbols([*named, *self._unnamed(starts, self.library.stretches())])

    def _in_text(self, symbols: Iterable[Symbol]) -> list[Symbol]:
        found = giving_way(symbols)
        return [each for each in found if each.address in self.library and each.section.startswith(".text")]

    @property
    def written(self) -> str:
        """See `Image`."""
        alone = process_text.libraries_called(plain := super().written) == [self.library]
        return plain if alone else process_text.distinctive_name(self.library)

    @property
    def is_searched(self) -> bool:
        """See `Image`."""
        return "functions" not in vars(self) and self.library.is_searched

    @property
    def edition(self) -> int:
        """It never gets more functions."""
        return 0

    def chosen(self, choose: Callable[[Sequence[str]], Sequence[int]], question: str) -> Sequence[Symbol]:
        """See `Image`."""
        found = self.library.many.chosen(choose, question) if self.is_searched else None
        if found is None:
            return super().chosen(choose, question)
        self.library.called.update(each.address for each in found if not is_cold(each.name))
        return sorted_symbols([*self._in_text(found), *self._chosen_unnamed(choose)])

    def _chosen_unnamed(self, choose: Callable[[Sequence[str]], Sequence[int]]) -> Iterator[Symbol]:
        """The members of `functions` without a symbol that are chosen. What they are is found out only of these."""
        library = self.library
        starts = sorted(library.starts() - library.many.starts)
        places: set[int] = set()
        for kind in Kind:
            places.update(choose([f"{library.name}+{start - library.base:#x}{kind.suffix}" for start in starts]))
        for start in [starts[place] for place in sorted(places)]:
            for symbol in self._unnamed(set(), library.stretches_in(start - 1, start + 1)):
                if choose([symbol.name]):
                    yield symbol

    def named(self, name: str) -> Sequence[Symbol]:
        """See `Image`."""
        if not self.is_searched or name.startswith(f"{self.library.name}+0x"):
            return super().named(name)
        return self._in_text(self.library.all_named(name))

    def like(self, name: str, most: int) -> Iterable[str]:
        """See `Image`."""
        return self.library.like(name, most) if self.is_searched else super().like(name, most)

    def beginning_at(self, addresses: Set[int]) -> Sequence[Symbol]:
        """See `Image`."""
        if not self.is_searched:
            return super().beginning_at(addresses)
        found = self._in_text(self._named_at(addresses))
        for address in addresses - {symbol.address for symbol in found}:
            found += self._unnamed(set(), self.library.stretches_in(address - 1, address + 1))
        return sorted_symbols(found)

    def _named_at(self, addresses: Set[int]) -> Sequence[Symbol]:
        if len(addresses) > _FEW:
            return self.library.many.beginning_at(addresses)
        return [symbol for address in addresses for symbol in self.library.between(address, address + 1)]

    def next_starts(self, addresses: Iterable[int], reach: int) -> list[int]:
        """See `Image`."""
        addresses = list(addresses)
        if not self.is_searched:
            return super().next_starts(addresses, reach)
        named = self._next_named if len(addresses) <= _FEW else self._next_of_many
        found = (named(address, reach) + self._next_described(address, reach) for address in addresses)
        return [min(starts) for starts in found if starts]

    def _next_named(self, address: int, reach: int) -> list[int]:
        """Where symbols begin after an address and within reach."""
        return [each.address for each in self._in_text(self.library.between(address + 1, address + reach))]

    def _next_of_many(self, address: int, reach: int) -> list[int]:
        """The same, but the first only."""
        start = self.library.many.next_start(address)
        return [start] if start is not None and start < address + reach else []

    def _next_described(self, address: int, reach: int) -> list[int]:
        """Where functions begin after an address and within reach by the unwind tables."""
        near = self.library.stretches_in(address, address + reach)
        return [each.start for each in near if each.start < each.end and self.library.may_be_function(each)]

    @property
    def no_names(self) -> str:
        """See `Image`."""
        if not self.library.is_replaced:
            return ""
        return (
            f"{self.library.path} is not the file any more that was loaded, so only the names that it exports are known"
        )

    def suggestions(self) -> Iterator[str]:
        """The names that the library exports."""
        return iter(self.library.exported)

    def _unnamed(self, named: set[int], stretches: Iterable[Stretch]) -> Iterator[Symbol]:
        """Functions without a symbol, from the unwind tables: code that begins with the stack as a call leaves it."""
        library = self.library
        for stretch in giving_way(stretches):
            start, end = stretch.start, stretch.end
            if start < end and start not in named:
                kind = library.kind_of(stretch)
                if kind in (Kind.FUNCTION, Kind.UNKNOWN):
                    yield Symbol(
                        f"{library.name}+{start - library.base:#x}{kind.suffix}", start, end - start, library.name
                    )

    @property
    def is_live(self) -> bool:
        return any(library == self.library for library in libraries())

    def __contains__(self, address: object) -> bool:
        return address in self.library

    def text_at(self, address: int) -> TextMapping:
        return process_text.text_at(address)

    def code_in_file(self, address: int, size: int) -> bytes:
        return self.library.code_in_file(address, size)

    def is_in(self, folder: str) -> bool:
        return is_in_folder(str(self.library.path), folder)

    def meant(self, function: Symbol) -> Symbol:
        return process_text.chosen(self.library, function) if function.indirect else function

    def unversioned(self, name: str) -> str:
        return self.library.unversioned(name)

    def other_than_function(self, function: Symbol) -> str:
        if is_cold(function.name):
            return Kind.COLD.reason
        kind = self.library.kind_from(function.address)
        return "" if kind is Kind.UNKNOWN else kind.reason


class _Libraries(Source):
    is_named = True

    def __init__(self) -> None:
        self._known: dict[Library, LibraryImage] = {}

    def images(self) -> list[LibraryImage]:
        found = libraries()
        for gone in self._known.keys() - set(found):
            del self._known[gone]
        for library in found:
            if library not in self._known:
                self._known[library] = LibraryImage(process_text.unique(library))
        return [self._known[library] for library in found]


source = _Libraries()
