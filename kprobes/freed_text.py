"""Probes in text that is freed become GONE: in modules that are unloaded, and in code of JIT compilers."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ftrace.core.runtime import runtime
from ftrace.core.tracer import UNMAPPED, image_blocks, take_out_image, tracer
from kprobes import states
from kprobes.breakpoint.patching import patching
from kprobes.checks import blacklist_of_module
from kprobes.fast import return_stubs
from kprobes.jump.functions import forget_functions
from kprobes.jump.optinsns import close_cache
from kprobes.jump.worker import Worker
from kprobes.place import Place, between, release_text, settle
from kprobes.probe import KPROBE_FLAG_GONE
from sandbox.images import jit_image
from sandbox.loading.module import Module, ModuleState
from sandbox.symbols.table import symbol_table

if TYPE_CHECKING:
    from sandbox.images.jit_image import JitImage
    from sandbox.memory.mappings import TextMapping


def module_event(event: ModuleState, module: Module) -> None:
    """Update the blacklist; when a module is unloaded, its probes become GONE.

    Raises OSError(EBUSY) while a hooked call of the module has not returned.
    """
    blacklist_of_module(event, module)
    if event is ModuleState.GOING:
        _refuse_if_in_use(module)
        _kill(module)


def _refuse_if_in_use(module: Module) -> None:
    busy = {ip for ip in runtime().shadow_ips() if any(ip in text for text in module.texts)}
    if busy:
        named = ", ".join(sorted(symbol_table.describe(ip).partition("+")[0] for ip in busy))
        raise OSError(errno.EBUSY, f"module {module.name!r} is in use: {named} has not returned")


def _kill(module: Module) -> None:
    """Kill the module's probes and restore its text: the unload may still be refused."""
    kill_probes_in(module.texts)
    settle()
    forget_texts(module.texts)


def kill_probes_in(texts: Iterable[TextMapping], *, is_mapped: bool = True) -> None:
    """Remove all probes from text that is about to be freed. If that has been unmapped, it is neither read nor written."""
    with patching():
        for text in texts:
            for place in between(text.base, text.end):
                _kill_probes(place, is_mapped)


def forget_texts(texts: Iterable[TextMapping]) -> None:
    """Free the places, slots and detours of text that is about to be freed. No other thread may be in a hit there."""
    with patching():
        for text in texts:
            forget_functions(text.base, text.end)
            close_cache(text)
            release_text(text)
            return_stubs.release_return_stubs(text)


def _kill_probes(place: Place, is_mapped: bool) -> None:
    """Mark the probes as GONE; their owners still have to unregister them."""
    for p in place.children:
        p.flags |= KPROBE_FLAG_GONE
    if not is_mapped and not place.on_ftrace:
        states.abandon(place)
    if place.armed:
        states.disarm(place, immediate=True)
    if place.jump is not None:
        return_stubs.update_fast_returns(place)
    return_stubs.forget_fast_returns(place)
    states.forget(place)
    place.forget()


log = logging.getLogger("kprobes")

_killed: list[Callable[[], None]] = []
"""One function for each freed image: frees our memory for it. May be called once no other thread is in a hit."""


def kill_image(image: JitImage, *, is_mapped: bool = True) -> None:
    """Take all probes off `image`, which is about to be unmapped or has been. Does not wait."""
    with patching():
        kill_probes_in(image.texts, is_mapped=is_mapped)
        free_locations = take_out_image(image)
    image.leave()
    texts = image.texts

    def free() -> None:
        forget_texts(texts)
        free_locations()
        image.forget_texts()

    _killed.append(free)
    _freeing.kick()


def kill_unmapped() -> None:
    """Let images go whose code has been unmapped without notice, before anything reads or writes it."""
    for image in [image for image in jit_image.patched if not image.is_mapped()]:
        jit_image.patched.remove(image)
        if not image_blocks(image):  # otherwise ftrace reports it
            log.warning(UNMAPPED, image.name, image.texts[0].base, image.texts[-1].end)
        kill_image(image, is_mapped=False)


def free_killed() -> None:
    """Free the remaining objects of freed images. The caller holds no locks and is not a handler."""
    killed = []
    with contextlib.suppress(IndexError):
        while True:
            killed.append(_killed.pop())  # one step: another thread may do the same
    if killed:
        settle()
        tracer().reclaimer.settle(whole=True)
        for free in killed:
            free()


_freeing = Worker(free_killed, lambda: bool(_killed))
"""Images are killed where nobody may wait."""


@atexit.register
def _stop() -> None:
    _freeing.stop()
