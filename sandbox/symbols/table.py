"""The symbol table of the process: names to addresses, addresses to names, for code and data of every module."""

from __future__ import annotations

import operator
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sandbox.process import fork
from sandbox.symbols.near import did_you_mean


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
        return f"{self.name} [{self.module}]"

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
        return f"{symbol.name}+{self.offset:#x}/{symbol.size:#x} [{symbol.module}]"


def sorted_symbols(symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
    """By ascending address; of several names for one, a compiler's alias (`fib.localalias`) comes last."""
    return tuple(sorted(symbols, key=lambda symbol: (symbol.address, "." in symbol.name)))


ENCLOSING = 8
"""How many symbols may start inside a function before its end: labels of assembly, aliases."""


_address_of = operator.itemgetter(1)


def locate(symbols: Sequence[Symbol], address: int) -> Location | None:
    """The symbol of `symbols`, in ascending order, that contains `address`; None if there is none.

    A symbol without a size covers only its own address. Of several at one address the last one with a size wins, except that a
    compiler's alias (`rec.localalias`) wins only over other aliases.
    """
    end = bisect_right(symbols, address, key=_address_of)
    around = [s for s in symbols[max(end - ENCLOSING, 0) : end] if s.address <= address < s.address + s.size]
    if around:
        symbol = max(around, key=lambda s: (s.address, "." not in s.name, around.index(s)))
        return Location(symbol, address - symbol.address)
    if end and symbols[end - 1].address == address:
        return Location(symbols[end - 1], 0)
    return None


class SymbolTable:
    """Symbols of any number of modules, each added and removed as a whole. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = fork.renew(threading.Lock())
        self._modules: dict[str, tuple[Symbol, ...]] = {}
        # Replaced as a whole, never changed: readers take no lock.
        self._sorted: tuple[Symbol, ...] = ()
        self._names: dict[str, list[Symbol]] | None = {}

    def add(self, module: str, symbols: Iterable[Symbol]) -> None:
        """Register the symbols of `module`. Raises ValueError if it is there already."""
        with self._lock:
            if module in self._modules:
                raise ValueError(f"symbols of module {module!r} are already registered")
            self._modules[module] = tuple(symbols)
            self._publish((*self._sorted, *self._modules[module]))

    def remove(self, module: str) -> None:
        """Forget the symbols of `module`. Raises LookupError if there are none."""
        with self._lock:
            if module not in self._modules:
                raise LookupError(f"no symbols of module {module!r} are registered")
            del self._modules[module]
            self._publish(symbol for symbols in self._modules.values() for symbol in symbols)

    def _publish(self, everything: Iterable[Symbol]) -> None:
        self._sorted, self._names = tuple(sorted(everything, key=_address_of)), None

    def _by_name(self) -> dict[str, list[Symbol]]:
        names = self._names
        if names is None:
            with self._lock:
                names = {}
                for symbol in self._sorted:
                    names.setdefault(symbol.name, []).append(symbol)
                self._names = names
        return names

    def named(self, name: str) -> list[Symbol]:
        """Every symbol called `name`, written `symbol` or `module:symbol`, by ascending address."""
        found = self._by_name().get(name)
        if found is None and ":" in name:
            module, _, bare = name.partition(":")
            found = [symbol for symbol in self._by_name().get(bare, ()) if symbol.module == module]
        return list(found or ())

    def lookup(self, name: str) -> int:
        """The address of `name` (see `named`); of several, the lowest.

        Raises LookupError naming it if there is none.
        """
        found = self.named(name)
        if not found:
            raise LookupError(f"no symbol {name!r}{did_you_mean(name, (symbol.name for symbol in self._sorted))}")
        return found[0].address

    def locate(self, address: int) -> Location | None:
        """The symbol that contains `address`, and the offset in it; None if there is none."""
        return locate(self._sorted, address)

    def describe(self, address: int) -> str:
        """`name+0xoff/0xsize [module]`, or the bare address in hexadecimal if no symbol covers it."""
        return str(self.locate(address) or f"{address:#x}")

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)


symbol_table = SymbolTable()
"""The symbol table of this process."""
