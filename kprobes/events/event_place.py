"""The place of a kprobe event, as its line gives it: a symbol and an offset, or an address."""

from __future__ import annotations

from dataclasses import dataclass

from ftrace.core.kstrtox import kstrtoull
from ftrace.tracing.events.probe_event import split_symbol_offset
from ftrace.tracing.probe_args.errors import ErrorCode, error
from kprobes import checks
from sandbox.images.near_misses import no_symbol
from sandbox.images.process_text import library_called
from sandbox.loading.module import is_loaded
from sandbox.symbols.table import symbol_table

_MAX_OFFSET = (1 << 32) - 1
_PLACE = 1
"""The index of the place among a line's words."""


@dataclass(frozen=True)
class EventPlace:
    """`symbol` and `offset`, or `address`. `says_return`: the text ends in `%return`."""

    symbol: str | None
    offset: int
    address: int
    says_return: bool = False

    def __str__(self) -> str:
        if self.symbol is None:
            return f"0x{self.address:016x}"
        return f"{self.symbol}+{self.offset}" if self.offset else self.symbol

    @property
    def module(self) -> str | None:
        """The module or library that precedes the symbol; None if there is none."""
        module, colon, _ = (self.symbol or "").partition(":")
        return module if colon else None

    @property
    def absence(self) -> str:
        """Why there is no code at this place, as a sentence with what may have been meant; '' if its symbol is there."""
        if self.symbol is None:
            return f"no code of a loaded module or library is at {self.address:#x}"
        module, colon, rest = self.symbol.partition(":")
        if colon and rest.isdecimal() and symbol_table.named(module):
            return f"no module or library {module!r} is loaded; an instruction of a function is written {module}+OFFSET"
        return no_symbol(self.symbol) if _count(self) == 0 else ""

    @property
    def generated_name(self) -> str:
        """The generated name of an event at this place, without its `p_` or `r_`."""
        return f"0x{self.address:016x}" if self.symbol is None else f"{self.symbol}_{self.offset}"

    @property
    def is_entry(self) -> bool | None:
        """Whether it is a function's entry; None if the function is not loaded."""
        try:
            return checks.locate(None, self.symbol, self.offset).is_entry
        except OSError:
            return None


def parse_place(text: str) -> EventPlace:
    """The place in a line's second word. Raises ProbeError, also for a symbol that is unknown or not unique."""
    try:
        return EventPlace(None, 0, kstrtoull(text))
    except OSError:
        pass
    symbol, percent, suffix = text.partition("%")
    if percent and suffix != "return":
        raise error(ErrorCode.BAD_ADDR_SUFFIX, len(symbol), _PLACE)
    try:
        symbol, offset = split_symbol_offset(symbol)
    except OSError:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE) from None
    if not 0 <= offset <= _MAX_OFFSET:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE)
    place = EventPlace(symbol, offset, 0, bool(percent))
    _check_symbol(place)
    return place


def _check_symbol(place: EventPlace) -> None:
    """Raise ProbeError unless there is exactly one symbol of that name, or its module may still be loaded."""
    if place.module is not None and not module_is_there(place.module):
        return
    count = _count(place)
    if count != 1:
        raise error(ErrorCode.NON_UNIQ_SYMBOL if count else ErrorCode.BAD_PROBE_ADDR, 0, _PLACE)


def module_is_there(name: str) -> bool:
    """Whether a module or library of that name is loaded."""
    return is_loaded(name) or (bool(name) and library_called(name) is not None)


def _count(place: EventPlace) -> int:
    """How many symbols have the name."""
    assert place.symbol is not None
    library = library_called(place.module) if place.module is not None and not is_loaded(place.module) else None
    if library is None:
        return len({symbol.address for symbol in symbol_table.named(place.symbol)})
    bare = library.unversioned(place.symbol.partition(":")[2])
    return len({symbol.address for symbol in library.symbols if symbol.name == bare})
