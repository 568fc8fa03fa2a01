"""Functions of an image that is not a module, as locations that are made when a probe needs them."""

from __future__ import annotations

import abc
import ctypes
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftrace.core.sites.block import Read, SiteBlock
from ftrace.core.sites.lists import Stubs
from ftrace.core.sites.locations import LocationSet
from ftrace.hit.x86_64.stubs import SITE_SIZE
from sandbox.memory.pages import read

if TYPE_CHECKING:
    from ftrace.core.sites.lists import ListCache, Stubs
    from sandbox.images.image import Image
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


class ImageBlock(SiteBlock, abc.ABC):
    """Functions of an image in one mapping of text, ascending by address. `functions[i]` begins at `addresses[i]`."""

    def __init__(
        self, image: Image, functions: list[Symbol], text: TextMapping, lists: ListCache, kind: Stubs, read: Read
    ) -> None:
        addresses = array("Q", [function.address for function in functions])
        super().__init__(image.name, functions, addresses, text, lists, read, kind)
        self.image = image
        self.unhookable = self.refused_by_name

    @abc.abstractmethod
    def covers(self, image: Image, address: int) -> bool:
        """Whether this block has the function of `image` at `address`."""

    @abc.abstractmethod
    def make(self, indexes: Iterable[int]) -> None:
        """Make the missing locations, as far as possible. Patches nothing. With the lock."""

    def is_mapped(self) -> bool:
        """Whether the first and the last of its functions are still there: a JIT compiler may have unmapped them."""
        try:
            return bool(read(self.addresses[0], 1) and read(self.addresses[-1], 1))
        except OSError:
            return False

    def is_live(self, index: int) -> bool:
        return self.is_made(index) and self.list_at(index) is not self._empty and not self._off

    def _known_refusal(self, index: int) -> str:
        return super()._known_refusal(index) or self.image.other_than_function(self.functions[index])


class PreparedBlock(ImageBlock):
    """The sites in one mapping of text. Until a location is made, a kprobe may use its bytes."""

    def __init__(self, image: Image, functions: list[Symbol], text: TextMapping, lists: ListCache, read: Read) -> None:
        super().__init__(image, functions, text, lists, Stubs.AT_ENTRY, read)
        self._made = 0
        codes = [int.from_bytes(read(address, SITE_SIZE), "little") for address in self.addresses]
        self._originals = (ctypes.c_uint64 * len(codes))(*codes)

    def covers(self, image: Image, address: int) -> bool:
        return image is self.image and address in image.stubs and address in self._text

    def make(self, indexes: Iterable[int]) -> None:
        indexes = list(indexes)
        self._text.prepare(self.addresses[index] for index in indexes)
        for index in indexes:
            self._made |= 1 << index

    def is_made(self, index: int) -> bool:
        return bool(self._made >> index & 1)

    def text_of(self, index: int) -> bytes:
        return int(self._originals[index]).to_bytes(SITE_SIZE, "little")

    def _describe(self, stub_text: int) -> None:
        super()._describe(stub_text)
        self._native.originals = ctypes.addressof(self._originals)

    @property
    def everything(self) -> int:
        return self._made


def in_images(selection: LocationSet) -> dict[ImageBlock, list[int]]:
    """The locations that are not in modules, as positions in their blocks."""
    found: dict[ImageBlock, list[int]] = {}
    for block, mask in selection.items():
        if isinstance(block, ImageBlock):
            found[block] = [index for _block, index in LocationSet({block: mask}).each()]
    return found
