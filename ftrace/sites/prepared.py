"""Functions of an image that was compiled with stubs: modules prepared by `sandbox.prepare`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftrace.sites.image_block import ImageBlock, Read
from ftrace.sites.lists import Stubs
from ftrace.x86_64.stubs import SITE_SIZE

if TYPE_CHECKING:
    from ftrace.sites.lists import ListCache
    from sandbox.images.image import Image
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


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
