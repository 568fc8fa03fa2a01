"""The place of a kprobe event, as its line gives it: a symbol and an offset, an address, or a source line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ftrace.core.kstrtox import kstrtoll, kstrtoull
from ftrace.tracing.probe_args.errors import ErrorCode, error
from kprobes import checks
from sandbox.images.near_misses import no_symbol
from sandbox.images.process_text import (
    distinctive_name,
    is_symbol,
    libraries_called,
    library_called,
    library_of,
    symbol_at,
)
from sandbox.images.source_places import address_of_line, is_file, split_line
from sandbox.loading.module import loaded_modules
from sandbox.symbols.file_names import in_events
from sandbox.symbols.names import split_offset, split_owner
from sandbox.symbols.table import Symbol, symbol_table

_FORMS = 4
"""Symbols of one name that a message lists."""
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
        module, colon, _ = split_owner(self.symbol or "")
        return module if colon else None

    @property
    def absence(self) -> str:
        """Why there is no code at this place, as a sentence with what may have been meant; '' if its symbol is there."""
        if self.symbol is None:
            return f"no code of a loaded module or library is at {self.address:#x}"
        return no_symbol(self.symbol) if not _named(self) else ""

    @property
    def generated_name(self) -> str:
        """The generated name of an event at this place, without its `p_` or `r_`."""
        return f"0x{self.address:016x}" if self.symbol is None else f"{self.symbol}_{self.offset}"

    @property
    def code(self) -> int | None:
        """The address of its instruction; None if that is not loaded."""
        try:
            return checks.locate(self.address or None, self.symbol, self.offset).address
        except OSError:
            return None

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
        raise error(ErrorCode.BAD_ADDR_SUFFIX, len(symbol), _PLACE, hint="the only suffix is %return")
    if (at_line := _of_line(symbol)) is not None:
        return replace(at_line, says_return=bool(percent))
    try:
        symbol, offset = split_offset(symbol, is_symbol, kstrtoll)
    except OSError:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE) from None
    if not 0 <= offset <= _MAX_OFFSET:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE)
    place = EventPlace(symbol, offset, 0, bool(percent))
    _check_symbol(place)
    return place


def _of_line(text: str) -> EventPlace | None:
    """The place of a source line, as symbol and offset; None for other texts. Raises ProbeError if there is no code for it.

    It is the address where several functions in one library have the name.
    """
    written = split_line(text)
    if written is None or is_symbol(text) or not (is_file(written[0]) or is_symbol(written[0])):
        return None
    try:
        address = address_of_line(*written)
    except LookupError as absent:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE, hint=str(absent.args[0])) from None
    symbol = symbol_at(address)
    if symbol is None:
        return EventPlace(None, 0, address)
    owner = symbol.module if symbol.module in loaded_modules else in_events(symbol.module)
    place = EventPlace(f"{owner}:{symbol.name}", address - symbol.address, 0)
    return place if len(_named(place)) == 1 else EventPlace(None, 0, address)


def _check_symbol(place: EventPlace) -> None:
    """Raise ProbeError unless there is exactly one symbol of that name, or its module may still be loaded."""
    if place.module is not None and not module_is_there(place.module):
        return
    found = _named(place)
    if not found:
        raise error(ErrorCode.BAD_PROBE_ADDR, 0, _PLACE, hint=no_symbol(str(place.symbol)))
    if len(found) > 1:
        raise error(ErrorCode.NON_UNIQ_SYMBOL, 0, _PLACE, hint=_unique_forms(found))


def module_is_there(name: str) -> bool:
    """Whether a module or library of that name is loaded."""
    return name in loaded_modules or (bool(name) and library_called(name) is not None)


def _named(place: EventPlace) -> list[Symbol]:
    """The symbols that have the name, one for each address."""
    assert place.symbol is not None
    found = libraries_called(place.module) if place.module is not None and place.module not in loaded_modules else []
    if not found:
        return _each_once(symbol_table.named(place.symbol))
    bare = split_owner(place.symbol)[2]
    return _each_once(symbol for library in found for symbol in library.all_named(library.unversioned(bare)))


def _each_once(symbols: Iterable[Symbol]) -> list[Symbol]:
    return list({symbol.address: symbol for symbol in symbols}.values())


def _unique_forms(symbols: Sequence[Symbol]) -> str:
    """How to write each of several symbols of one name: with its module or, if that does not help, by its address."""
    owners = [_owner(symbol) for symbol in symbols]
    forms = [
        f"{owner}:{each.name}" if owners.count(owner) == 1 else f"{each.address:#x}"
        for each, owner in zip(symbols, owners, strict=True)
    ]
    return f"give one of {', '.join(forms[:_FORMS])}{', ...' if len(forms) > _FORMS else ''}"


def _owner(symbol: Symbol) -> str:
    """The name of a symbol's module or library that no other has."""
    library = library_of(symbol.address) if symbol.module not in loaded_modules else None
    return symbol.module if library is None else distinctive_name(library)
