"""Code in memory, as every kind of loader passes it to a module."""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sandbox.compile.stubs import Flavour
from sandbox.memory import mappings
from sandbox.memory.existing_text import remap_text
from sandbox.memory.mappings import TextMapping
from sandbox.symbols.table import Symbol
from sandbox.threads import faults


@dataclass
class LoadedCode:
    """A program in memory whose stubs are NOPs, and which no thread runs yet.

    Functions and data by ascending address; `sites` are the stubs' addresses, ascending, `site_functions` the function
    of each. `start` runs the constructors, `discard` unmaps everything: no thread may be in it, or enter it.
    """

    kind: Flavour
    functions: tuple[Symbol, ...]
    data: tuple[Symbol, ...]
    sites: array[int]
    site_functions: list[Symbol]
    texts: tuple[TextMapping, ...]
    start: Callable[[], None]
    discard: Callable[[], None]
    debug_image: bytes | None = None
    """An ELF image for debuggers, its sections at the addresses where they are; None if they can find it themselves."""
    shared_object: tuple[bytes, int] | None = None
    """The file that the dynamic loader has opened, and the address that it has added to those in the file."""


def call_guarded(function: int) -> None:
    """Call the function at this address. Raises SandboxFault if calls are guarded and it faults."""
    guard = faults.installed
    ctypes.CFUNCTYPE(None)(guard.entry(function) if guard else function)()
    if guard:
        guard.check()


def owners(sites: Sequence[int], functions: Sequence[Symbol]) -> list[Symbol]:
    """The function that contains each of `sites`; of several names for one function, the first.

    Raises ValueError naming a site outside of all functions.
    """
    # Reversed, so that the first name of an address is entered last.
    first = {symbol.address: symbol for symbol in reversed(functions) if symbol.size}
    starts = sorted(first)
    found = []
    for site in sites:
        index = bisect_right(starts, site) - 1
        if index < 0 or site >= first[starts[index]].end:
            raise ValueError(f"the stub at {site:#x} is not inside any function of the symbol table")
        found.append(first[starts[index]])
    return found


def remap(spans: Iterable[tuple[int, int]], name: str) -> tuple[TextMapping, ...]:
    """Put the text in `spans` (start, end) where it can be written later; whole pages, neighbours in one mapping."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        low, high = start & -mappings.PAGE, (end + mappings.PAGE - 1) & -mappings.PAGE
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        elif high > low:
            merged.append([low, high])
    return tuple(remap_text(low, high - low, name) for low, high in merged)


def drop_aliases(texts: Iterable[TextMapping]) -> None:
    """Give back the writable views of text whose executable pages their owner has unmapped already."""
    for text in texts:
        text.forget()
