"""Removal of probes from JIT code that is being freed: they become GONE, like those of an unloaded module.

LLVM calls the hook of the GDB JIT interface before it frees code; a kprobe on the hook notices. Its handler runs with LLVM's
locks held, so it must not wait: later calls wait and free. The locks that it needs are taken before LLVM's,
around those calls of llvmlite that free code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kprobes.breakpoint.patching import patching
from kprobes.freed_text import free_killed, kill_image
from kprobes.probe import kprobe
from kprobes.registration import register_kprobe
from sandbox.images import compiled
from sandbox.process import hooks
from sandbox.symbols import gdbjit, other_jits

ListChange = Callable[[], tuple[int, bool] | None]
_watching: dict[int, kprobe] = {}
"""Address of the hook -> the kprobe there."""


def watch() -> None:
    """Put the kprobe on the hook. Does not wait for other threads."""
    changes: dict[int, ListChange] = {interface.hook: interface.relevant for interface in other_jits.interfaces()}
    changes |= {hook: gdbjit.relevant} if (hook := gdbjit.hook_address()) else {}
    if changes.keys() <= _watching.keys():
        return
    with patching():
        for hook in changes.keys() - _watching.keys():
            # Python 3.15 exports the interface, so other compilers' calls arrive in python itself: its own function there
            # holds no lock that the handler takes.
            probe = kprobe(addr=hook, pre_handler=partial(_list_changed, changes[hook]), python_unsafe=True)
            probe.is_listed = False
            register_kprobe(probe)
            _watching[hook] = probe


hooks.before_patching.add(watch)
hooks.around_closing.add(patching)


def _list_changed(change: ListChange, _probe: object, _regs: object) -> int:
    entry, going = change() or (0, False)
    image = compiled.source.take(entry) if going else None
    if image is not None:
        kill_image(image)
    return 0


__all__ = ["free_killed", "watch"]
