"""Locations by pattern, for images of every kind: stubs that a compiler has emitted, or that are made at the entry on demand."""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from ftrace.core.entries.neighbours import free_bytes
from ftrace.core.filters.image_functions import ImageFunction, find_functions
from ftrace.core.sites.detoured import DetouredBlock
from ftrace.core.sites.image_block import ImageBlock, PreparedBlock
from ftrace.core.sites.locations import Location, LocationSet, Resolution, Skipped, original_text
from ftrace.core.sites.refusals import called_by_hits, runs_python
from ftrace.core.tracer import tracer
from sandbox.images.sources import image_at
from sandbox.native.x86_64.entry_bytes import REACH
from sandbox.symbols.table import Symbol, preference

if TYPE_CHECKING:
    from sandbox.images.image import Image
    from sandbox.memory.mappings import TextMapping


def locate(pattern: str) -> Resolution:
    """The locations of the functions that `pattern` matches, in images of any kind.

    Raises LookupError if it matches nothing, with names that are like it; OSError if a library's text cannot be patched.
    """
    return locations_of(find_functions(pattern))


def locate_addresses(addresses: Iterable[int]) -> Resolution:
    """The locations of functions by their addresses.

    Raises OSError(EINVAL) for an address at which no function begins.
    """
    table = tracer().table
    known: list[Location] = []
    unknown: list[int] = []
    for address in addresses:
        location = table.location(address)
        if location is not None:
            known.append(location)
        else:
            unknown.append(address)
    resolution = locations_of([*_found_at(unknown)])
    return Resolution(LocationSet.of(known) | resolution.locations, resolution.skipped)


def _found_at(addresses: Iterable[int]) -> Iterator[ImageFunction]:
    """The function that begins at each address. For consecutive addresses, an image and its functions are looked up once."""
    image: Image | None = None
    functions: dict[int, Symbol] = {}
    addresses = list(addresses)
    for address in addresses:
        if image is None or address not in image:
            image = image_at(address)
            functions = _functions_of(image, addresses) if image is not None else {}
        function = functions.get(address)
        if image is None or function is None:
            raise OSError(errno.EINVAL, f"{address:#x} is not the entry of a function that can be traced")
        yield ImageFunction(image, function)


def _functions_of(image: Image, addresses: Iterable[int]) -> dict[int, Symbol]:
    """The first function at each address, by address: of a very large image, those at these addresses."""
    if image.module is not None:
        return {}
    functions = (
        image.beginning_at({each for each in addresses if each in image}) if image.is_searched else image.functions
    )
    return {function.address: function for function in reversed(functions) if not function.indirect}


def locations_of(wanted: Iterable[ImageFunction]) -> Resolution:
    """The same for functions that have been found already."""
    with tracer().table.lock:
        return _located(wanted)


def _located(wanted: Iterable[ImageFunction]) -> Resolution:
    table, chosen, skipped = tracer().table, list[Location](), list[Skipped]()
    blocks = _Blocks(wanted := list(wanted))
    by_block: dict[ImageBlock, list[int]] = {}
    block: ImageBlock | None = None
    for found in wanted:
        location = table.location(found.function.address) if found.image.module else None
        if location is not None:
            chosen.append(location)
        elif (reason := _refusal(found)) != "":
            skipped.append(Skipped(str(found), reason))
        else:
            address = found.function.address
            try:
                if block is None or not block.covers(found.image, address):
                    block = blocks.at(found.image, address)
            except OSError as error:  # text without a file
                skipped.append(Skipped(str(found), error.strerror or str(error)))
            else:
                by_block.setdefault(block, []).append(bisect_left(block.addresses, address))
    for block, indexes in by_block.items():
        block.make(indexes)
        chosen += [Location(block, index) for index in indexes if block.is_made(index)]
        skipped += [Skipped(Location(block, i).readable, block.reason(i)) for i in indexes if not block.is_made(i)]
    return Resolution(LocationSet.of(chosen), skipped)


def _refusal(found: ImageFunction) -> str:
    if found.image.module is not None:
        return "it was compiled without a stub"
    if (reason := outside(found)) or found.function.address not in called_by_hits():
        return reason
    return f"a hit calls {found.function.name} itself"


def outside(found: ImageFunction) -> str:
    """Why an indirect function (IFUNC) is not in its library, as a sentence; "" if the function is in its image."""
    if found.function.address in found.image:
        return ""
    if not found.function.address:
        return "the dynamic loader has chosen nothing for it"
    return "what the dynamic loader has chosen for it is outside the library, as the kernel's vDSO is"


class _Blocks:
    """The blocks of these functions.

    A block has all functions of an image. If they are very many, it has those that are wanted together: what a block costs
    depends on the number of its functions.
    """

    def __init__(self, wanted: Iterable[ImageFunction]) -> None:
        self._wanted = [each for each in wanted if each.image.is_searched]

    def at(self, image: Image, address: int) -> ImageBlock:
        """The block with the function at this address, which is made if there is none. Raises OSError as `text_at`."""
        table = tracer().table
        blocks = [known for known in table.of_images if isinstance(known, ImageBlock) and known.image is image]
        for known in blocks:
            if known.covers(image, address):
                return known
        text, read = image.text_at(address), partial(original_text, table)
        block: ImageBlock
        if address in image.stubs:
            functions = [each for each in _functions_in(image.functions, image, text) if each.address in image.stubs]
            block = PreparedBlock(image, functions, text, table.lists, read)
        else:
            functions, starts = self._functions_for(image, text, blocks)
            block = DetouredBlock(image, functions, text, table.lists, read, free_bytes, starts)
        table.of_images.append(block)
        return block

    def _functions_for(
        self, image: Image, text: TextMapping, blocks: list[ImageBlock]
    ) -> tuple[list[Symbol], list[int]]:
        """The functions of a new block of `image`, which has these blocks; and where functions begin in and after them."""
        wanted = {each.function.address for each in self._wanted if each.image is image}
        if wanted and image.is_searched and len(blocks) < _MOST_BLOCKS:
            functions = _functions_in(image.beginning_at(wanted), image, text)
            starts = sorted({*wanted, *image.next_starts(wanted, REACH)})
        else:
            functions = _functions_in(image.functions, image, text)
            starts = [each.address for each in functions]
        known = {address for block in blocks for address in block.addresses}
        return [each for each in functions if each.address not in known], starts


_MOST_BLOCKS = 64
"""Blocks of one image. A further one has all functions that are left."""


def _functions_in(functions: Iterable[Symbol], image: Image, text: TextMapping) -> list[Symbol]:
    """Each function once, under the name that users write; for indirect ones, the chosen function."""
    by_address: dict[int, Symbol] = {}
    for function in sorted(functions, key=lambda function: preference(function.name)):
        meant = image.meant(function)
        if meant.address in text:
            by_address.setdefault(meant.address, meant)
    return [by_address[address] for address in sorted(by_address)]


# -- for registration ---------------------------------------------------------------------------------------------------


def unsafe_for_python(selection: LocationSet) -> LocationSet:
    """The locations among these where a Python handler could wait for its own thread."""
    return LocationSet(
        {b: mask for b, mask in selection.items() if isinstance(b, DetouredBlock) and runs_python(b.name)}
    )
