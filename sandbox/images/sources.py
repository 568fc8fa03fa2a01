"""The list of all images, and their sources: modules, libraries and JIT compilers."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sandbox.images import compiled, library_images
from sandbox.images.image import Image, Source
from sandbox.loading.module import Module, ModuleState, modules

if TYPE_CHECKING:
    from sandbox.memory.mappings import TextMapping
    from sandbox.symbols.table import Symbol


def sources() -> list[Source]:
    """Modules first, then libraries, then the code of JIT compilers."""
    return [source, library_images.source, compiled.source]


def images() -> Iterator[Image]:
    """All images, in the order of their sources."""
    for source in sources():
        yield from source.images()


def image_at(address: int) -> Image | None:
    """The image that `address` is in; None if in none."""
    return next((image for image in images() if address in image), None)


class ModuleImage(Image):
    """A loaded module."""

    def __init__(self, module: Module) -> None:
        self.module: Module = module
        self.name = module.name
        self.names = frozenset({module.name})

    @property
    def functions(self) -> Sequence[Symbol]:
        return self.module.functions

    @property
    def is_live(self) -> bool:
        return self.module.state is not ModuleState.GONE

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and any(address in text for text in self.module.texts)

    def text_at(self, address: int) -> TextMapping:
        for text in self.module.texts:
            if address in text:
                return text
        raise OSError(errno.EINVAL, f"{address:#x} is not in the text of module {self.name!r}")


class _Modules(Source):
    is_named = False

    def images(self) -> list[ModuleImage]:
        return [self._image_of(module) for module in modules()]

    def _image_of(self, module: Module) -> ModuleImage:
        if not isinstance(module.image, ModuleImage):
            module.image = ModuleImage(module)
        return module.image


source = _Modules()
