"""Images of JIT compilers that leave: their probes become GONE, and what we have for them is freed later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ftrace.entries import departure
from ftrace.tracer import UNMAPPED, tracer
from kprobes.breakpoint.patching import patching
from kprobes.place import modules
from kprobes.place.aggregate import settle
from sandbox.images import jit

if TYPE_CHECKING:
    from sandbox.images.jit import JitImage

log = logging.getLogger("kprobes")

_left: list[Callable[[], None]] = []
"""One function for each freed image: frees our memory for it. May be called once no other thread is in a hit."""


def leave(image: JitImage, *, is_mapped: bool = True) -> None:
    """Take all probes off `image`, which is about to be unmapped or has been. Waits for nobody."""
    with patching():
        modules.kill_probes_in(image.texts, is_mapped=is_mapped)
        free_locations = departure.leave(image)
    image.leave()
    texts = image.texts

    def free() -> None:
        modules.forget_texts(texts)
        free_locations()
        image.forget_texts()

    _left.append(free)


def leave_unmapped() -> None:
    """Let images go whose code has been unmapped without notice, before anything reads or writes it."""
    for image in [image for image in jit.patched if not image.is_mapped()]:
        jit.patched.remove(image)
        if not departure.locations_of(image):  # otherwise ftrace reports it
            log.warning(UNMAPPED, image.name, image.texts[0].base, image.texts[-1].end)
        leave(image, is_mapped=False)


def free_leavings() -> None:
    """Free what is left of freed images. The caller holds no locks and is not a handler."""
    if _left:
        left, _left[:] = list(_left), []
        settle()
        tracer().reclaimer.settle(whole=True)
        for free in left:
            free()
