"""What JIT compilers have made, as images: every object that the GDB JIT interface lists and that is not this package's.

Objects of Numba are called `numba`, and their functions as their authors called them; all others are called `jit`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sandbox.elf.tables import ElfError
from sandbox.images.image import Image
from sandbox.jit.objects import JitObject, read_object
from sandbox.memory import mappings
from sandbox.symbols import gdbjit
from sandbox.symbols.gdbjit import Listed
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping


before_patching: list[Callable[[], None]] = []
"""Called whenever code of an image is about to be made patchable: who has to know when it goes watches from then on."""


class JitImage(Image):
    """An object that a JIT compiler has placed. Its text is put on a memory file, where it runs, when it is first patched."""

    name = "jit"
    names = frozenset({"jit"})

    def __init__(self, obj: JitObject) -> None:
        self.object = obj
        self.texts: tuple[TextMapping, ...] = ()
        self._is_live = True

    @property
    def functions(self) -> Sequence[Symbol]:
        return self.object.functions

    @property
    def is_live(self) -> bool:
        return self._is_live

    def __contains__(self, address: object) -> bool:
        return address in self.object

    def text_at(self, address: int) -> TextMapping:
        if address not in self or not self._is_live:
            raise OSError(
                errno.EINVAL, f"{address:#x} is not in the text of [{self.name}], or that is not there any more"
            )
        for watch in before_patching:
            watch()
        with mappings.text_mutex:
            if not self.texts:
                self._make_patchable()
        return next(text for text in self.texts if address in text)

    def _make_patchable(self) -> None:
        from sandbox.loading.image import remap

        self.texts = remap(self.object.text, self.name)
        symbol_table.add(self._key, self.functions)

    @property
    def _key(self) -> str:
        """What its symbols are registered under: several images have one name."""
        return f"{self.name}@{self.object.entry:#x}"

    def leave(self) -> None:
        """The code is about to be unmapped, or has been: nobody may patch it any more."""
        with mappings.text_mutex:
            was_live, self._is_live = self._is_live, False
            if was_live and self.texts:
                symbol_table.remove(self._key)

    def forget_texts(self) -> None:
        """Give the writable views of its text back."""
        with mappings.text_mutex:
            texts, self.texts = self.texts, ()
            for text in texts:
                text.forget()


class _JitImages:
    is_named = True

    def __init__(self) -> None:
        self._known: dict[Listed, JitImage | None] = {}
        """None: not an object for x86-64, without code, or one of ours."""

    def images(self) -> list[JitImage]:
        """Those of the objects that are listed now."""
        for gone in gdbjit.listed(self._update):
            gone.leave()
        return [image for image in list(self._known.values()) if image is not None]

    def _update(self, now: list[Listed]) -> list[JitImage]:
        """Those that are not there any more. While nobody changes the list."""
        gone = [self._known.pop(listed) for listed in self._known.keys() - set(now)]
        for listed in now:
            data = ctypes.string_at(listed.image, listed.size)
            known = self._known.get(listed)
            if known is not None and known.object.data != data:
                gone.append(self._known.pop(listed))
            if listed not in self._known:
                self._known[listed] = _image_of(listed, data)
        return [image for image in gone if image is not None]

    def take(self, entry: int) -> JitImage | None:
        """Remove and return the image of the object with that entry in the list; None if it is not known."""
        found = next((listed for listed in list(self._known) if listed.entry == entry), None)
        return self._known.pop(found) if found else None

    def at(self, address: int) -> JitImage | None:
        """The image that `address` is in; None if in none."""
        known = next((image for image in list(self._known.values()) if image is not None and address in image), None)
        return known if known and known.is_live else next((it for it in self.images() if address in it), None)


def _image_of(listed: Listed, data: bytes) -> JitImage | None:
    from sandbox.numba.images import NumbaImage, is_numbas

    try:
        obj = read_object(listed.entry, data)
    except ElfError:
        return None
    if not obj.functions or not obj.text or any(function.address in gdbjit.own_code for function in obj.functions):
        return None
    return NumbaImage(obj) if is_numbas(obj) else JitImage(obj)


source = _JitImages()
