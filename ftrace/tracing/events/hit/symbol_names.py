"""Publish the process's symbols as a native table, for arguments of the type symstr (ftrace.hit.events.symbol_text)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence

from ftrace.core.runtime import runtime
from ftrace.hit.events.symbol_text import NamedRange, NamedRanges
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.symbols.table import Symbol, symbol_table


class SymbolNames:
    """Keeps the table up to date once an event needs it."""

    def __init__(self) -> None:
        self._lock = fork.renew(threading.Lock())
        self._held = (0, 0)
        register_module_notifier(self._module_event)

    def ensure(self) -> None:
        """Publish the symbols, unless they are. From then on, they are published again whenever a module is loaded."""
        if not self._held[0]:
            self.refresh()

    def refresh(self) -> None:
        """Publish the present symbols."""
        with self._lock:
            symbols = _distinct()
            texts = {text: None for symbol in symbols for text in (symbol.name, symbol.module)}
            names = "\0".join(texts).encode("utf-8", "surrogateescape") + b"\0"
            ranges = NamedRanges.offset("ranges")
            size = ranges + NamedRange.size * len(symbols) + len(names)
            place = mappings.reserve(size)
            words = [len(symbols), *_ranges(symbols, names, place + size - len(names))]
            ctypes.memmove(place, (ctypes.c_uint64 * len(words))(*words), 8 * len(words))
            ctypes.memmove(place + size - len(names), names, len(names))
            runtime().image.variable("event_symbol_names").value = place
            before, self._held = self._held, (place, size)
        if before[0]:
            mappings.release(*before)

    def _module_event(self, event: ModuleState, _module: Module) -> None:
        if self._held[0] and event is ModuleState.COMING:
            self.refresh()


def _distinct() -> list[Symbol]:
    """One symbol for each address: the one that the symbol table prefers."""
    starts = dict.fromkeys(symbol.address for symbol in symbol_table)
    found = (symbol_table.locate(start) for start in starts)
    return [location.symbol for location in found if location is not None and not location.offset]


def _ranges(symbols: Sequence[Symbol], names: bytes, names_at: int) -> Iterator[int]:
    """The words of the table of NamedRange. `names_at`: the address of the names, each ended by a NUL."""
    offset, places = 0, dict[str, int]()
    for name in names[:-1].split(b"\0"):
        places[name.decode("utf-8", "surrogateescape")] = names_at + offset
        offset += len(name) + 1
    for symbol in symbols:
        yield from (symbol.address, max(symbol.end, symbol.address + 1), places[symbol.name], places[symbol.module])


@once
def symbol_names() -> SymbolNames:
    """The process's SymbolNames, made when the first event needs it."""
    return SymbolNames()
