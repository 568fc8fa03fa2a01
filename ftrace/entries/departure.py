"""Images that go: their locations leave the table while the code is still there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrace.sites.image_block import ImageBlock
from ftrace.tracer import tracer

if TYPE_CHECKING:
    from sandbox.images.image import Image


def locations_of(image: Image) -> list[ImageBlock]:
    """The locations of `image` that are in the table. With its lock."""
    return [it for it in tracer().table.of_images if isinstance(it, ImageBlock) and it.image is image]


def leave(image: Image) -> Callable[[], None]:
    """Take the locations of `image`, which is about to be unmapped, off everything. Waits for nobody.

    What it returns is to be called once no other thread is in a hit: it frees what the locations had.
    """
    tracing = tracer()
    with tracing.table.lock:
        gone = locations_of(image)
        for block in gone:
            tracing.take_out(block)

    def free() -> None:
        for block in gone:
            if not tracing.frames_in(block):  # otherwise a call will return through its stub
                block.close()

    return free
