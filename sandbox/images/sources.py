"""The sources of images, and the list of all images."""

from __future__ import annotations

from collections.abc import Iterator

from sandbox.images import compiled, libraries, modules
from sandbox.images.image import Image, Source

_sources: list[Source] = []


def register_source(source: Source) -> None:
    """Let patterns and addresses mean the images of `source`, too. One that is registered is not registered again."""
    if source not in _sources:
        _sources.append(source)


def sources() -> list[Source]:
    """Modules first, then libraries, then JIT code, then what has been registered."""
    return [modules.source, libraries.source, compiled.source, *_sources]


def images() -> Iterator[Image]:
    """All images, in the order of their sources."""
    for source in sources():
        yield from source.images()


def image_at(address: int) -> Image | None:
    """The image that `address` is in; None if in none."""
    return next((image for image in images() if address in image), None)
