"""Code of JIT compilers that goes takes its probes with it: they are GONE, as with a module that is unloaded.

LLVM calls the hook of the GDB JIT interface while the code is still there, and a kprobe is there. Its handler holds LLVM's
locks: it waits for nobody, and leaves to later calls what has to wait. The locks that it needs are taken before LLVM's, around
the calls of llvmlite that make code go.
"""

from __future__ import annotations

from collections.abc import Callable

from ftrace import departure
from ftrace.tracer import tracer
from kprobes.breakpoint.patching import patching
from kprobes.place import modules
from kprobes.place.aggregate import settle
from kprobes.probe import kprobe
from kprobes.registration import register_kprobe
from sandbox.images import compiled, jit
from sandbox.images.jit import JitImage
from sandbox.jit import arrivals
from sandbox.symbols import gdbjit

_watching: list[kprobe] = []
_left: list[Callable[[], None]] = []
"""What frees the leavings of images that have gone, once no other thread is in a hit."""


def watch() -> None:
    """Notice from now on when JIT code goes. Waits for nobody."""
    hook = gdbjit.hook_address()
    if _watching or not hook:
        return
    with patching():
        if not _watching:
            probe = kprobe(addr=hook, pre_handler=_told)
            register_kprobe(probe)
            _watching.append(probe)


jit.before_patching.append(watch)
arrivals.around_closing.append(patching)


def _told(_probe: object, _regs: object) -> int:
    entry, going = gdbjit.relevant() or (0, False)
    image = compiled.source.take(entry) if going else None
    if image is not None:
        _leave(image)
    return 0


def _leave(image: JitImage) -> None:
    with patching():
        modules.kill_probes_in(image.texts)
        free_locations = departure.leave(image)
    image.leave()
    texts = image.texts

    def free() -> None:
        modules.forget_texts(texts)
        free_locations()
        image.forget_texts()

    _left.append(free)


def free_leavings() -> None:
    """To be called without locks and outside of handlers."""
    if _left:
        left, _left[:] = list(_left), []
        settle()
        tracer().reclaimer.settle(whole=True)
        for free in left:
            free()
