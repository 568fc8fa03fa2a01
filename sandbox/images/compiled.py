"""The source of images of JIT compilers: what the GDB JIT interface lists or a perf map declares, without this package's own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sandbox.elf.tables import ElfError, ElfFile
from sandbox.images.declared import DeclaredImage, DeclaredImages
from sandbox.images.image import Source
from sandbox.symbols import gdbjit, other_jits
from sandbox.symbols.gdbjit import JitEntry
from sandbox.symbols.names import is_glob

if TYPE_CHECKING:
    from sandbox.images.jit_image import JitImage


class _JitImages(Source):
    is_named = True

    def __init__(self) -> None:
        self._known: dict[JitEntry, JitImage | None] = {}
        """None: not an object for x86-64, without code, or one of ours."""
        self._declared = DeclaredImages()

    def images(self) -> list[JitImage]:
        """The images of objects that are listed now and mapped: a compiler may have unmapped code that it still lists."""
        others = other_jits.listed()
        for gone in gdbjit.listed(lambda ours: self._update(_with_images(ours) | others)):
            gone.leave()
        mapped = [image for image in list(self._known.values()) if image is not None and image.is_mapped()]
        return [*mapped, *self._declared_besides(mapped)]

    def _declared_besides(self, listed: list[JitImage]) -> list[DeclaredImage]:
        """The images that the perf map declares, except on pages with code of listed objects, which have more information."""
        spans = [span for image in listed for span in image.object.text]
        return [image for image in self._declared.images() if not any(image.shares_pages_with(span) for span in spans)]

    def _update(self, now: dict[JitEntry, bytes]) -> list[JitImage]:
        """The images whose code has been freed. LLVM's list must not change meanwhile."""
        gone = [self._known.pop(listed) for listed in self._known.keys() - now.keys()]
        for listed, data in now.items():
            known = self._known.get(listed)
            if known is not None and (known.object.data != data or not known.is_live):
                gone.append(self._known.pop(listed))
            if listed not in self._known:
                self._known[listed] = _image_of(listed, data)
        return [image for image in gone if image is not None]

    def may_compile(self, owner: str, matches: Callable[[str], bool]) -> bool:
        """Numba knows the names of functions that it may compile; for other compilers (`jit:`) any name is possible. New lines
        of a perf map (`perf:`) are not announced: their functions must be there now.
        """
        if owner != "numba":
            return owner == "jit"
        from sandbox.images.numba.live import declared

        return any(map(matches, declared()))

    def inlined_calls(self, owner: str, wanted: str, matches: Callable[[str], bool], with_globs: bool) -> Iterator[str]:
        """Only Numba says what it has inlined."""
        if owner == "numba":
            from sandbox.images.numba.inlined import sentences

            if with_globs or not is_glob(wanted):
                yield from sentences(self.images(), wanted, matches)

    def take(self, entry: int) -> JitImage | None:
        """Remove and return the image of the object with that entry in the list; None if it is not known."""
        found = next((listed for listed in list(self._known) if listed.entry == entry), None)
        return self._known.pop(found) if found else None

    def at(self, address: int) -> JitImage | None:
        """The image that `address` is in; None if in none."""
        known: JitImage | None
        known = next((image for image in list(self._known.values()) if image is not None and address in image), None)
        return (
            known
            if known and known.is_live and known.is_mapped()
            else next((it for it in self.images() if address in it), None)
        )


def _with_images(listed: list[JitEntry]) -> dict[JitEntry, bytes]:
    return {each: ctypes.string_at(each.image, each.size) for each in listed}


def _image_of(listed: JitEntry, data: bytes) -> JitImage | None:
    from sandbox.images.jit_objects import read_object, text_of

    try:
        text = text_of(ElfFile(data))
        if not text or any(start in gdbjit.own_code for start, _ in text):
            return None  # ours, in most cases; reading all symbols of a large program takes half a second
        obj = read_object(listed.entry, data)
    except ElfError:
        return None
    if not obj.functions or any(function.address in gdbjit.own_code for function in obj.functions):
        return None
    from sandbox.images.jit_image import JitImage
    from sandbox.images.numba.images import NumbaImage, is_numbas

    return NumbaImage(obj) if is_numbas(obj) else JitImage(obj)


source = _JitImages()
