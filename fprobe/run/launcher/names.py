"""Symbols for the addresses of a process that may have ended, read from the files of the libraries that it had loaded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sandbox.elf.tables import ElfFile
from sandbox.process.once import cached_property
from sandbox.process.printable import printable
from sandbox.symbols.demangling import MANGLED, demangled
from sandbox.symbols.file_names import short_name, told_apart
from sandbox.symbols.libraries import Library
from sandbox.symbols.readable import called, possible, readable
from sandbox.symbols.symbol_tables import Entries
from sandbox.symbols.table import Location, Symbol, sorted_symbols

if TYPE_CHECKING:
    from fprobe.prototypes.described import Described

_NUMBA = "numba"


class Named(NamedTuple):
    """A name, and the library or module that contains it; `library` is empty if the address is unknown.

    `symbol`: the name as the compiler has written it, if it is a function's.
    `types`: of the arguments of a specialisation; `place`: where the function begins, if there are others of its name.
    """

    name: str
    library: str = ""
    types: str = ""
    place: str = ""
    symbol: str = ""

    def __str__(self) -> str:
        shown = f"{self.name}({self.types})" if self.types else self.name
        shown = f"{shown} at {self.place}" if self.place else shown
        return printable(f"{shown} [{self.library}]" if self.library else shown)

    def called(self, arguments: str = "") -> str:
        """A call of it: `deflate [libz](flush=4)`."""
        return called(self.name, arguments, lambda name: str(self._replace(name=name)))

    def as_object(self) -> dict[str, str]:
        """For JSON, without what is empty."""
        return {"name": self.name, "symbol": self.symbol or self.name, "module": self.library} | {
            key: value for key, value in (("types", self.types), ("place", self.place)) if value
        }


class Names:
    """The libraries and probed functions of a process. `root`: what its paths are below."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._libraries: list[Library] = []
        self._paths: tuple[str, ...] = ()
        """Those of the libraries, all of which each name is compared with."""
        self._functions: dict[int, Named] = {}
        self._code: list[tuple[int, int, str, str]] = []
        """Functions outside of libraries, ascending: first address, the one after the last, name, image."""
        self._bearers: dict[Named, set[int]] = {}
        """The addresses of the functions of each name; without symbols."""
        self._earlier: list[dict[Named, set[int]]] = []
        """The same before each exec."""

    def forget(self) -> Names:
        """What is known after an exec: addresses now mean something else, but those of calls that were counted before it."""
        made = Names(self._root)
        made.inherit(self)
        made._earlier, made._bearers = [*self._earlier, self._bearers], {}
        return made

    def current(self, address: int) -> int:
        """Where the function that starts at an address is since the last exec; the address itself if it is nowhere."""
        found = self._functions.get(address)
        if found is None or not self._earlier:
            return address
        named = found._replace(symbol="")
        now = sorted(self._bearers.get(named, ()))
        for earlier in (sorted(each.get(named, ())) for each in self._earlier):
            if address in earlier and len(earlier) == len(now):
                return now[earlier.index(address)]
        return address

    def take_libraries(self, libraries: list[list[Any]]) -> None:
        """Add libraries, as `fprobe.run.tracee.patterns.described` returns them."""
        for name, path, file, base, text, marks, symbols in libraries:
            spans = tuple((start, end) for start, end in text)
            known = tuple((offset, bytes.fromhex(mark)) for offset, mark in marks)
            told = tuple((each, offset, size) for each, offset, size in symbols)
            self._libraries.append(
                _library(name, Path(self._root + path), Path(self._root + file), base, spans, known, told)
            )
        self._paths = tuple(str(each.path) for each in self._libraries)

    def take_functions(self, functions: list[tuple[int, str, str, str]]) -> None:
        """Add probed functions, as `fprobe.run.tracee.patterns.plain_values` returns them."""
        for address, name, image, types in functions:
            named = Named(readable(name), short_name(image), types)
            self._functions[address] = named._replace(symbol=name)
            self._bearers.setdefault(named, set()).add(address)

    def take_code(self, code: list[tuple[str, str, int, int]]) -> None:
        """Add functions outside of libraries, as `fprobe.run.tracee.patterns.compiled_code` returns them."""
        self._code = sorted([*self._code, *((start, end, name, image) for name, image, start, end in code)])

    def inherit(self, parent: Names) -> None:
        """Add the libraries and functions of the process that forked this one."""
        self._libraries = parent._libraries + self._libraries
        self._paths = parent._paths + self._paths
        self._functions = parent._functions | self._functions
        self.take_code([(name, image, start, end) for start, end, name, image in parent._code])
        for named, addresses in parent._bearers.items():
            self._bearers.setdefault(named, set()).update(addresses)

    def function(self, address: int) -> Named:
        """The function that starts at an address."""
        found = self._functions.get(address)
        if found is None:
            return self.place(address)
        bearers = self._bearers.get(found._replace(symbol=""), {address})
        if len(bearers) > 1:
            library = self._library_of(address)
            bearers = {each for each in bearers if self._library_of(each) == library}
            found = found._replace(library=self._owner(library, found.library))
        if len(bearers) == 1:
            return found
        full = demangled(found.symbol)
        same = sum(demangled(self._functions[each].symbol) == full for each in bearers)
        if full and same == 1:  # overloads
            return found._replace(name=full)
        return found._replace(place=self._offset(address))

    def place(self, address: int) -> Named:
        """The function that contains an address, with the offset."""
        library, found = self._located(address)
        if found is None:
            return self._unknown(address)
        return self._named(library, found, f"+{found.offset:#x}")

    def described(self, address: int) -> Described | None:
        """The function that starts at an address, with its arguments; None if nothing tells them."""
        from fprobe.prototypes.described import described  # most reports do not need all that
        from sandbox.symbols import library_dwarf

        library, found = self._located(address)
        if found is None or library is None or found.offset:
            return None
        asked = self._functions[address].symbol if address in self._functions else found.symbol.name
        aliases = [symbol.name for symbol in library.between(address, address + 1)]
        return described([asked, *aliases], library.path.name, library_dwarf.definition_of(library, found.symbol))

    def returns_status(self, address: int) -> bool:
        """Whether it is Numba's: ax is a status then, and the result is in memory."""
        return self.function(address).library == _NUMBA

    def symbols(self) -> list[Symbol]:
        """The functions of the libraries that have probed ones, and of code outside of libraries."""
        code = [Symbol(name, start, end - start, image) for start, end, name, image in self._code]
        probed = [each for each in self._libraries if any(address in each for address in self._functions)]
        return code + [each for library in probed for each in library.symbols if each.address in library]

    def knows(self, address: int) -> bool:
        """Whether an address is in the code of a library, or is the start of a probed function."""
        return address in self._functions or any(address in library for library in self._libraries)

    def around(self, address: int) -> Named:
        """The function that contains an address."""
        library, found = self._located(address)
        if found is None:
            return self._compiled(address, with_offset=False) or self._unknown(address)
        return self._named(library, found)

    def describe(self, address: int) -> str:
        """`symbol+0xoffset/0xsize [library]`; the bare address in hexadecimal if no symbol covers it.

        A function of a JIT compiler is as tables show it.
        """
        return str(self._located(address)[1] or self._outside(address) or hex(address))

    def name(self, address: int) -> str:
        """`symbol [library]`; the bare address in hexadecimal if no symbol covers it."""
        _, found = self._located(address)
        return str(found.symbol) if found else str(self._outside(address) or hex(address))

    def _outside(self, address: int) -> Named | None:
        """What is at an address outside of libraries: a probed function, or another one with the offset."""
        if self._library_of(address) is not None:
            return None
        return self.function(address) if address in self._functions else self._compiled(address)

    def _located(self, address: int) -> tuple[Library | None, Location | None]:
        library = self._library_of(address)
        return library, None if library is None else library.locate(address)

    def _named(self, library: Library | None, found: Location, offset: str = "") -> Named:
        symbol = found.symbol
        if symbol.address in self._functions and not (known := self.function(symbol.address)).types:
            return known._replace(name=f"{known.name}{offset}")  # as tables show it: in full, if overloaded
        name = symbol.readable if library is None else _name_in(library, symbol.name)
        return Named(f"{name}{offset}", self._owner(library, symbol.module), symbol=symbol.name)

    def _library_of(self, address: int) -> Library | None:
        """The library whose code contains an address: of two that were there one after the other, the later."""
        return next((library for library in reversed(self._libraries) if address in library), None)

    def _owner(self, library: Library | None, name: str) -> str:
        """The name of a library that no other of the process has; `name` for code outside of libraries."""
        if library is None:
            return short_name(name)
        return told_apart(str(library.path), self._paths)

    def _offset(self, address: int) -> str:
        """An address as offset in its library, which is the same in every process; JIT code has the bare address."""
        library = self._library_of(address)
        return hex(address) if library is None else f"+{address - library.base:#x}"

    def _unknown(self, address: int) -> Named:
        library = self._library_of(address)
        if address in self._functions or library is None:
            return self._functions.get(address) or self._compiled(address) or Named(hex(address))
        return Named(f"{library.name}+{address - library.base:#x}", short_name(library.name))

    def _compiled(self, address: int, *, with_offset: bool = True) -> Named | None:
        at = bisect_right(self._code, address, key=lambda function: function[0])
        start, end, name, image = self._code[at - 1] if at else (0, 0, "", "")
        if not start <= address < end:
            return None
        shown = readable(name)
        return Named(f"{shown}+{address - start:#x}" if with_offset else shown, image, symbol=name)


class _TracedLibrary(Library):
    """A library of the program. `told`: name, offset and size of its symbols, if its file is not there any more."""

    def __init__(
        self,
        name: str,
        path: Path,
        file: Path,
        base: int,
        text: tuple[tuple[int, int], ...],
        marks: tuple[tuple[int, bytes], ...],
        told: tuple[tuple[str, int, int], ...],
    ) -> None:
        super().__init__(name, path, base, text, marks=marks, file=file)
        self._told = told

    @cached_property
    def _is_another(self) -> bool:
        """Whether the file is not the one that the program has loaded."""
        return self.is_replaced

    def _symbols_from(self, entries: Callable[[ElfFile, int], Entries]) -> tuple[Symbol, ...]:
        """Those that were told, if the file is not the one that the program has: its memory is not here."""
        if self._is_another:
            return sorted_symbols(Symbol(name, self.base + at, size, self.name) for name, at, size in self._told)
        return super()._symbols_from(entries)

    def between(self, start: int, end: int) -> tuple[Symbol, ...]:
        """See `Library`."""
        return tuple(each for each in super().between(start, end) if start <= each.address < end)


@cache
def _name_in(library: Library, symbol: str) -> str:
    """The readable name of a symbol, in full where others of the library have the same, such as overloads."""
    shown = readable(symbol)
    if not symbol.startswith(MANGLED) or library.is_searched:
        return shown
    names = _mangled(library)
    same = {demangled(names[at]) for at in possible(shown, names) if readable(names[at]) == shown}
    return (demangled(symbol) or shown) if len(same - {""}) > 1 else shown


@cache
def _mangled(library: Library) -> list[str]:
    return [each.name for each in library.symbols if each.name.startswith(MANGLED)]


_library = cache(_TracedLibrary)
"""Kept: each report of a process names its libraries again."""
