"""The symbol table of the process: names to addresses, addresses to names, for code and data of every module."""

from __future__ import annotations

import heapq
import operator
import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from sandbox.elf.extents import ENCLOSING, Extents
from sandbox.memory.pages import PAGE
from sandbox.process import fork
from sandbox.process.near import did_you_mean
from sandbox.symbols.names import names_owner, split_owner
from sandbox.symbols.readable import named, readable

core: set[str] = set()
"""Modules that are shown as the kernel's core is: their functions without `[module]`."""


def owner_text(module: str) -> str:
    """What follows a symbol of a module where it is shown: ` [module]`, or nothing for the core."""
    return "" if module in core else f" [{module}]"


class Symbol(NamedTuple):
    """A function or data object of a module. `size` is in bytes; `module` is the module's name.

    `indirect`: the code at `address` is not the function but chooses it (IFUNC).
    """

    name: str
    address: int
    size: int
    module: str
    section: str = ".text"
    indirect: bool = False

    def __str__(self) -> str:
        return f"{self.readable}{owner_text(self.module)}"

    @property
    def readable(self) -> str:
        """The name as a programmer has written it: those of C++ and Rust are demangled, without parameters."""
        return readable(self.name)

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.address + self.size


class Location(NamedTuple):
    """An address relative to the symbol that contains it; prints as `name+0xoff/0xsize [module]`."""

    symbol: Symbol
    offset: int

    def __str__(self) -> str:
        symbol = self.symbol
        return f"{symbol.readable}+{self.offset:#x}/{symbol.size:#x}{owner_text(symbol.module)}"


_WIDTH = re.compile(r"f(?:32|64|128)x?(?:_r)?$")
"""The end of names that the C library has for its floating-point functions besides the usual ones: `cosf32x`."""


def preference(name: str) -> tuple[object, ...]:
    """Orders the names that one function has: the least is the one that programmers write.

    Old versions (`memcpy@GLIBC_2.2.5`) and a compiler's aliases (`fib.localalias`) come last, then those with more underscores
    at the front.
    """
    bare, at, _ = name.partition("@")
    if "." in bare:  # as JIT compilers name functions, too: these stay in their order
        return bool(at), True
    return bool(at), False, len(bare) - len(bare.lstrip("_")), bool(_WIDTH.search(bare)), len(bare), bare


def sorted_symbols(symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
    """By ascending address; of several names for one, a compiler's alias (`fib.localalias`) comes last."""
    return tuple(sorted(symbols, key=lambda symbol: (symbol.address, "." in symbol.name)))


def with_sizes(functions: Iterable[Symbol], text: Sequence[tuple[int, int]]) -> Iterator[Symbol]:
    """The functions; those without a size get one. `text`: start and end of the sections with code. Labels keep none."""
    known = list(functions)
    extents = Extents(lambda: ((each.address, each.size) for each in known), text)
    for each in known:
        yield each if each.size else each._replace(size=extents.end(each.address) - each.address)


_address_of = operator.itemgetter(1)
_start_of = operator.itemgetter(0)


def locate(symbols: Sequence[Symbol], address: int) -> Location | None:
    """The symbol of `symbols`, in ascending order, that contains `address`; None if there is none.

    A symbol without a size covers only its own address. Of several at one address, the name that programmers write wins.
    """
    end = bisect_right(symbols, address, key=_address_of)
    around = [s for s in symbols[max(end - ENCLOSING, 0) : end] if s.address <= address < s.address + s.size]
    if around:
        symbol = min(around, key=lambda s: (-s.address, preference(s.name)))
        return Location(symbol, address - symbol.address)
    if end and symbols[end - 1].address == address:
        return Location(symbols[end - 1], 0)
    return None


def _nearness(location: Location) -> tuple[bool, int, bool]:
    """Of the symbols that modules have for one address, the one that begins last has it; a compiler's alias only if need be."""
    return location.symbol.size > 0, location.symbol.address, "." not in location.symbol.name


class Span(NamedTuple):
    """Symbols of a module whose memory is contiguous, by ascending address. Symbols of other modules are seldom among them."""

    start: int
    end: int
    module: str
    symbols: tuple[Symbol, ...]


def spans(module: str, symbols: Iterable[Symbol]) -> Iterator[Span]:
    """The symbols, parted where none covers a page or more: another mapping may lie there."""
    ordered = sorted(symbols, key=_address_of)
    first, end = 0, ordered[0].address if ordered else 0
    for index, symbol in enumerate(ordered):
        if symbol.address - end >= PAGE:
            yield Span(ordered[first].address, end, module, tuple(ordered[first:index]))
            first = index
        end = max(end, symbol.end, symbol.address + 1)
    if ordered:
        yield Span(ordered[first].address, end, module, tuple(ordered[first:]))


class Spans:
    """The spans of all modules by ascending address. Immutable."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self.ordered = tuple(sorted(spans, key=_start_of))
        self._reach = tuple(accumulate((span.end for span in self.ordered), max))

    def around(self, address: int) -> list[Span]:
        """Those that contain `address`."""
        index = bisect_right(self.ordered, address, key=_start_of)
        found = []
        while index and self._reach[index - 1] > address:
            index -= 1
            if self.ordered[index].end > address:
                found.append(self.ordered[index])
        return found[::-1]


class SymbolTable:
    """Symbols of any number of modules, each added and removed as a whole. Safe to use from several threads.

    What adding and removing costs depends on the module alone, however many symbols there are.
    """

    def __init__(self) -> None:
        self._lock = fork.renew(threading.Lock())
        self._modules: dict[str, tuple[Symbol, ...]] = {}
        # Readers take no lock: the spans are replaced as a whole, and the symbols of each name.
        self._spans = Spans()
        self._names: dict[str, tuple[Symbol, ...]] = {}
        self._own: dict[str, tuple[Symbol, ...]] = {}
        """The same for modules whose symbols are meant only where no other has the name."""

    def add(self, module: str, symbols: Iterable[Symbol], *, is_own: bool = False) -> None:
        """Register the symbols of `module`. Raises ValueError if it is there already.

        `is_own`: the code is this project's, or of a JIT compiler, whose functions have names of another form: a name means
        one of its symbols only if no other module has that name.
        """
        with self._lock:
            if module in self._modules:
                raise ValueError(f"symbols of module {module!r} are already registered")
            self._modules[module] = added = tuple(symbols)
            self._spans = Spans((*self._spans.ordered, *spans(module, added)))
            names = self._own if is_own else self._names
            for symbol in added:
                known = names.get(symbol.name, ())
                at = bisect_right(known, symbol.address, key=_address_of)
                names[symbol.name] = (*known[:at], symbol, *known[at:])

    def remove(self, module: str) -> None:
        """Forget the symbols of `module`. Raises LookupError if there are none."""
        with self._lock:
            if module not in self._modules:
                raise LookupError(f"no symbols of module {module!r} are registered")
            self._spans = Spans(span for span in self._spans.ordered if span.module != module)
            removed = self._modules.pop(module)
            for names in (self._names, self._own):
                for symbol in removed:
                    _remove(names, symbol)

    def named(self, name: str) -> list[Symbol]:
        """Every symbol called `name`, written `symbol` or `module:symbol`, by ascending address.

        If none is, those whose demangled name is `name`, such as `ns::f`.
        """
        found = self._names.get(name) or self._own.get(name)
        if found is None and names_owner(name):
            module, _, bare = split_owner(name)
            both = (*self._names.get(bare, ()), *self._own.get(bare, ()))
            both = both or tuple(self._demangled(bare))
            return [symbol for symbol in both if symbol.module == module]
        return list(found or self._demangled(name))

    def _demangled(self, name: str) -> list[Symbol]:
        """The symbols whose demangled name is `name`."""
        symbols = list(self._names.copy())
        return [each for place in named(name, symbols) for each in self._names.get(symbols[place], ())]

    def lookup(self, name: str) -> int:
        """The address of `name` (see `named`); of several, the lowest.

        Raises LookupError naming it if there is none.
        """
        found = self.named(name)
        if not found:
            raise LookupError(f"no symbol {name!r}{did_you_mean(name, self._names.copy())}")
        return found[0].address

    def locate(self, address: int) -> Location | None:
        """The symbol that contains `address`, and the offset in it; None if there is none."""
        around = [location for span in self._spans.around(address) if (location := locate(span.symbols, address))]
        return max(around, key=_nearness, default=None)

    def describe(self, address: int) -> str:
        """`name+0xoff/0xsize [module]`, or the bare address in hexadecimal if no symbol covers it."""
        return str(self.locate(address) or f"{address:#x}")

    def __iter__(self) -> Iterator[Symbol]:
        return heapq.merge(*(span.symbols for span in self._spans.ordered), key=_address_of)

    def __len__(self) -> int:
        return sum(len(span.symbols) for span in self._spans.ordered)


def _remove(names: dict[str, tuple[Symbol, ...]], symbol: Symbol) -> None:
    left = tuple(other for other in names.get(symbol.name, ()) if other is not symbol)
    if left:
        names[symbol.name] = left
    else:
        names.pop(symbol.name, None)


symbol_table = SymbolTable()
"""The symbol table of this process."""
