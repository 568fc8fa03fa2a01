"""Notices that the program has loaded a library, once the loader holds no lock of its own any more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from ftrace.core.maps import per_task
from kprobes.handlers.native_decorator import native
from kprobes.registration import register_kretprobe, unregister_kretprobe
from kprobes.return_probe import kretprobe
from sandbox.native import u64
from sandbox.process import fork

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


def watch(loaded: Callable[[], None]) -> list[kretprobe]:
    """From now on call `loaded()` where a thread has returned from its outermost dlopen.

    The registered kretprobes are returned. Python waits for the GIL there, which a thread that waits for the loader may hold:
    so it is never called under the loader's lock. Raises OSError if dlopen cannot be probed.
    """

    def outermost(ri: object, regs: object) -> None:
        loaded()

    last: OSError | None = None
    for name in _WHERE:
        notifying = kretprobe(symbol_name=name, entry_handler=is_nested, handler=outermost, python_unsafe=True)
        counting = kretprobe(symbol_name=name, entry_handler=dlopen_begins, handler=dlopen_ends)
        notifying.maxactive = counting.maxactive = _PENDING
        notifying.kp.is_listed = counting.kp.is_listed = False
        try:
            register_kretprobe(notifying)
            register_kretprobe(counting)  # its entry handler runs first, and its handler before `outermost`
        except OSError as error:
            last = error
        else:
            return [notifying, counting]
    assert last is not None
    raise last


class LibraryWatch:
    """Calls `loaded()` for every library from `begin` on, as long as it `is_needed()`."""

    def __init__(self, loaded: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._loaded = loaded
        self._is_needed = is_needed
        self._lock = fork.renew(threading.Lock())
        self._held_by = 0
        self._probes: list[kretprobe] = []

    def begin(self) -> None:
        """Watch. Where dlopen cannot be probed, nothing is noticed."""
        with self._held(), contextlib.suppress(OSError):
            if not self._probes and self._is_needed():
                self._probes = watch(self._notice)
        if self._probes:
            self._loaded()  # what was loaded meanwhile

    def end_unless_needed(self) -> None:
        """Remove the probes once they are not needed."""
        with self._held():
            if self._probes and not self._is_needed():
                probes, self._probes = self._probes, []
                for probe in probes:
                    unregister_kretprobe(probe)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._held_by = threading.get_ident()
            try:
                yield
            finally:
                self._held_by = 0

    def _notice(self) -> None:
        """Registering and linking call dlopen, too: under the lock that is no news, and `loaded` may need the lock."""
        if self._held_by != threading.get_ident():
            self._loaded()
