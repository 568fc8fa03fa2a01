"""Notices that the program has loaded a library, once the loader holds no lock of its own any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrace.maps import per_task
from kprobes.native_decorator import native
from kprobes.return_probe import kretprobe
from kprobes.returns import register_kretprobe
from sandbox.loading.module import Module, ModuleState, register_module_notifier
from sandbox.native import u64

_PENDING = 64
_WHERE = ("libc:dlopen", "libdl:dlopen")
"""Before glibc 2.34 it was in a library of its own."""

depth = per_task(u64)
"""How many calls of dlopen the thread is in: constructors of libraries make calls inside a call."""


@native
def dlopen_begins(ri, regs):  # type: ignore[no-untyped-def]  # the decorator fills them in
    depth.value += 1


@native
def dlopen_ends(ri, regs):  # type: ignore[no-untyped-def]  # likewise
    depth.value -= 1


@native
def is_nested(ri, regs):  # type: ignore[no-untyped-def]
    if depth.value > 1:
        return 1
    return 0


def watch(loaded: Callable[[], None]) -> list[Any]:
    """From now on call `loaded()` where a thread has returned from its outermost dlopen, and for modules of the sandbox.

    What has to be kept is returned.
    Python waits for the GIL there, which a thread that waits for the loader may hold: so it is never called under the
    loader's lock.
    Raises OSError if dlopen cannot be probed.
    """

    def module_event(event: ModuleState, _module: Module) -> None:
        if event is ModuleState.LIVE:
            loaded()

    register_module_notifier(module_event)

    def outermost(ri: object, regs: object) -> None:
        loaded()

    last: OSError | None = None
    for name in _WHERE:
        told = kretprobe(symbol_name=name, entry_handler=is_nested, handler=outermost, python_unsafe=True)
        counted = kretprobe(symbol_name=name, entry_handler=dlopen_begins, handler=dlopen_ends)
        told.maxactive = counted.maxactive = _PENDING
        try:
            register_kretprobe(told)
            register_kretprobe(counted)  # its entry handler runs first, and its handler before `outermost`
        except OSError as error:
            last = error
        else:
            return [told, counted]
    assert last is not None
    raise last
