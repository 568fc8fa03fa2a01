"""What a search for locations has found."""

from __future__ import annotations

from typing import NamedTuple

from ftrace.sites.image_block import ImageBlock
from ftrace.sites.locations import Selection


class Skipped(NamedTuple):
    """A function that was asked for and cannot be traced; `reason` is a sentence."""

    name: str
    reason: str


class Located(NamedTuple):
    """The locations of what a pattern matches, and what has none."""

    selection: Selection
    skipped: list[Skipped]


def in_images(selection: Selection) -> dict[ImageBlock, list[int]]:
    """Those of the locations that are not in modules, as positions in their blocks."""
    found: dict[ImageBlock, list[int]] = {}
    for block, mask in selection.items():
        if isinstance(block, ImageBlock):
            found[block] = [index for _block, index in Selection({block: mask}).locations()]
    return found
