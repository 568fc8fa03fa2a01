"""The symbol table of the process: names to addresses, addresses to names, for code and data of every module."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Symbol(NamedTuple):
    """A function or data object of a module. `size` is in bytes; `module` is the module's name."""

    name: str
    address: int
    size: int
    module: str
    section: str = ".text"

    def __str__(self) -> str:
        return f"{self.name} [{self.module}]"

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.address <= address < self.address + max(self.size, 1)


class Location(NamedTuple):
    """An address seen from the symbol that it lies in; prints as `name+0xoff/0xsize [module]`."""

    symbol: Symbol
    offset: int

    def __str__(self) -> str:
        symbol = self.symbol
        return f"{symbol.name}+{self.offset:#x}/{symbol.size:#x} [{symbol.module}]"


class SymbolTable:
    """Symbols of any number of modules, each added and removed as a whole. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._modules: dict[str, tuple[Symbol, ...]] = {}
        self._sorted: list[Symbol] = []
        self._addresses: list[int] = []
        self._names: dict[str, list[Symbol]] | None = {}

    def add(self, module: str, symbols: Iterable[Symbol]) -> None:
        """Register the symbols of `module`. Raises ValueError if it is there already."""
        with self._lock:
            if module in self._modules:
                raise ValueError(f"symbols of module {module!r} are already registered")
            self._modules[module] = tuple(symbols)
            self._rebuild()

    def remove(self, module: str) -> None:
        """Forget the symbols of `module`. Raises KeyError if there are none."""
        with self._lock:
            del self._modules[module]
            self._rebuild()

    def _rebuild(self) -> None:
        # Readers take no lock: each list is complete before it is published, and never changed afterwards.
        ordered = sorted((s for symbols in self._modules.values() for s in symbols), key=lambda s: s.address)
        addresses = [symbol.address for symbol in ordered]
        self._sorted, self._addresses, self._names = ordered, addresses, None

    def _by_name(self) -> dict[str, list[Symbol]]:
        names = self._names
        if names is None:
            names = {}
            for symbol in self._sorted:
                names.setdefault(symbol.name, []).append(symbol)
            self._names = names
        return names

    def named(self, name: str) -> list[Symbol]:
        """Every symbol called `name`, by ascending address; empty if there is none."""
        return list(self._by_name().get(name, ()))

    def lookup(self, name: str) -> int:
        """The address of `name`, written `symbol` or `module:symbol`; of several, the lowest.

        Raises LookupError naming it if there is none.
        """
        module, _, bare = name.rpartition(":")
        found = [s for s in self.named(bare) if not module or s.module == module]
        if not found:
            raise LookupError(f"no symbol {name!r}")
        return found[0].address

    def locate(self, address: int) -> Location | None:
        """The symbol that `address` (an integer) lies in, and how far; None if in none."""
        ordered, addresses = self._sorted, self._addresses
        for index in range(bisect_right(addresses, address) - 1, -1, -1):
            symbol = ordered[index]
            if address in symbol:
                return Location(symbol, address - symbol.address)
            if symbol.address < address and symbol.size:
                return None
        return None

    def describe(self, address: int) -> str:
        """`name+0xoff/0xsize [module]`, or the bare address in hexadecimal if no symbol covers it."""
        location = self.locate(address)
        return str(location) if location else f"{address:#x}"

    def __iter__(self) -> Iterator[Symbol]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)


symbol_table = SymbolTable()
"""The symbol table of this process."""
