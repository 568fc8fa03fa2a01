"""Locations by pattern, for images of every kind: the stubs that a compiler has left, or made at the entry when asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ftrace.filters.resolve import Found, resolve
from ftrace.sites.detoured import DetouredBlock
from ftrace.sites.locations import Location, Selection
from ftrace.tracer import tracer

if TYPE_CHECKING:
    from sandbox.images.image import Image
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


class Skipped(NamedTuple):
    """A function that was asked for and cannot be traced; `reason` is a sentence."""

    name: str
    reason: str


class Located(NamedTuple):
    """The locations of what a pattern matches, and what has none."""

    selection: Selection
    skipped: list[Skipped]


def locate(pattern: str) -> Located:
    """The locations of the functions that `pattern` matches, in images of any kind.

    Raises LookupError if it matches nothing, with names that are like it; OSError if a library's text cannot be patched.
    """
    return locations_of(resolve(pattern))


def locations_of(wanted: Iterable[Found]) -> Located:
    """The same for functions that have been found already."""
    table = tracer().table
    with table.lock:
        chosen: list[Location] = []
        skipped: list[Skipped] = []
        by_block: dict[DetouredBlock, list[int]] = {}
        for found in wanted:
            if found.image.module is not None:
                location = table.location(found.function.address)
                if location is None:
                    skipped.append(Skipped(str(found), "it was compiled without a stub"))
                else:
                    chosen.append(location)
                continue
            block, index = _place_of(found)
            by_block.setdefault(block, []).append(index)
        for block, indexes in by_block.items():
            block.make(indexes)
            chosen += [Location(block, index) for index in indexes if index in block.ways]
            skipped += [Skipped(block.names[i], block.refusals[i]) for i in indexes if i in block.refusals]
        return Located(Selection.of(chosen), skipped)


def _place_of(found: Found) -> tuple[DetouredBlock, int]:
    address = found.function.address
    block = _block_at(found.image, address)
    return block, bisect_left(block.addresses, address)


def _block_at(image: Image, address: int) -> DetouredBlock:
    table = tracer().table
    for block in table.detoured:
        if isinstance(block, DetouredBlock) and block.covers(image, address):
            return block
    text = image.text_at(address)
    block = DetouredBlock(image, _functions_in(image, text), text, table.lists)
    table.detoured.append(block)
    return block


def _functions_in(image: Image, text: TextMapping) -> list[Symbol]:
    """Each function once, under its first name; indirect ones as what they are in this process."""
    by_address: dict[int, Symbol] = {}
    for function in image.functions:
        function = image.meant(function)
        if function.address in text:
            by_address.setdefault(function.address, function)
    return [by_address[address] for address in sorted(by_address)]
