"""Notices that the program has loaded a library, once the loader holds no lock of its own any more.

dlopen finds its caller by its return address, so its own return is not hooked. The return of the function that it calls to do the
work is: after that, dlopen only restores registers.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
from collections.abc import Callable, Iterator

from ftrace.core.maps import per_task
from kprobes.checks import kretprobe_blacklist
from kprobes.handlers.native_decorator import native
from kprobes.place import original_text
from kprobes.probe import kprobe
from kprobes.registration import register_kprobe, register_kretprobe, unregister_kprobe, unregister_kretprobe
from kprobes.return_probe import kretprobe
from sandbox.images.process_text import library_called, note_called, symbol_at
from sandbox.loading.sharedobject import is_opening
from sandbox.native import Structure, addressof, array, bool_, cast, probe_read, ptr, struct, u64, zeroed
from sandbox.native import native as native_function
from sandbox.process import fork
from sandbox.symbols.table import Symbol
from sandbox.x86_64.decoding import decoded

_PENDING = 64
_LIBRARIES = ("libc", "libdl")
"""Before glibc 2.34 dlopen was in a library of its own."""
_OPENERS = ("dlopen", "dlmopen")
_NEAR = 1 << 20
"""Bytes from a left call's return slot up to that of a later one on the same stack, at most."""
_ADDRESS = re.compile(r"0x[0-9a-f]+$")


@struct
class Opening(Structure):
    """A thread's outermost call of dlopen: its return slot and what is in it. `begins`: the call has not begun to work yet."""

    frame: u64
    caller: u64
    begins: u64


opening = per_task(Opening)
"""Constructors of libraries call dlopen inside a call."""


@native_function(inline=True)
def is_left(frame: u64, caller: u64, sp: u64) -> bool_:
    """Whether the call with that return slot is over, seen from one at `sp`: longjmp leaves calls without a return.

    A little above it on the same stack, it is. Elsewhere its return slot tells: calls since then have reused it.
    """
    word: array[u64, 1] = zeroed
    return sp - frame < _NEAR or probe_read(addressof(word[0]), frame, 8) < 0 or word[0] != caller


@native
def opener_called(p, regs):  # type: ignore[no-untyped-def]  # the decorator fills them in
    if opening.frame == 0 or is_left(opening.frame, opening.caller, regs.sp):
        opening.frame = regs.sp
        opening.caller = cast(ptr[u64], regs.sp)[0]
        opening.begins = 1


@native
def is_not_outermost(ri, regs):  # type: ignore[no-untyped-def]  # likewise
    if opening.begins == 1:
        return 0
    return 1


@native
def work_begins(ri, regs):  # type: ignore[no-untyped-def]
    if opening.begins == 0:
        return 1
    opening.begins = 0
    return 0


@native
def work_ends(ri, regs):  # type: ignore[no-untyped-def]
    opening.frame = 0


class Watch:
    """Probes on the functions that load libraries. `loaded()` is called where a thread's outermost call of one is over.

    Python waits for the GIL there, which a thread that waits for the loader may hold: so it is never called under the loader's
    lock. Raises OSError if the functions cannot be probed.
    """

    def __init__(self, loaded: Callable[[], None]) -> None:
        self._loaded = loaded
        self._probes: list[kprobe] = []
        self._return_probes: list[kretprobe] = []
        try:
            self._begin()
        except BaseException:
            self.end()
            raise

    def _begin(self) -> None:
        openers = list(_openers())
        for work in dict.fromkeys(address for opener in openers for address in _work_of(opener)):
            # The newer one's entry handler runs first, and its handler last: for Python, the call is over.
            for returned, entered in ((work_ends, work_begins), (self._outermost, is_not_outermost)):
                self._add_return_probe(
                    kretprobe(addr=work, entry_handler=entered, handler=returned, python_unsafe=True)
                )
        for opener in openers:
            probe = kprobe(addr=opener.address, pre_handler=opener_called)
            probe.is_listed = False
            register_kprobe(probe)
            self._probes.append(probe)

    def _add_return_probe(self, probe: kretprobe) -> None:
        probe.maxactive = _PENDING
        probe.kp.is_listed = False
        register_kretprobe(probe)
        self._return_probes.append(probe)

    def _outermost(self, _ri: object, _regs: object) -> None:
        self._loaded()

    def end(self) -> None:
        """Remove the probes."""
        while self._probes:
            unregister_kprobe(self._probes.pop())
        while self._return_probes:
            unregister_kretprobe(self._return_probes.pop())


def _openers() -> Iterator[Symbol]:
    """The functions that load libraries. Raises OSError if there are none."""
    for name in _LIBRARIES:
        library = library_called(name)
        found = [symbol for opener in _OPENERS if library and (symbol := library.named(opener)) is not None]
        note_called(symbol.address for symbol in found)
        if found:
            yield from found
            return
    raise OSError(errno.ENOENT, f"none of {', '.join(_LIBRARIES)} has dlopen")


def _work_of(opener: Symbol) -> list[int]:
    """The functions whose return is hooked for a call of this one: itself, or those that it calls if it reads its return address.

    Raises OSError if there are none.
    """
    reason = kretprobe_blacklist(opener)
    if not reason:
        return [opener.address]
    calls = decoded(original_text(opener.address, opener.size), opener.address)
    targets = [int(call.operands, 16) for call in calls if call.mnemonic == "call" and _ADDRESS.match(call.operands)]
    note_called(targets)
    functions = [symbol for symbol in map(symbol_at, targets) if symbol is not None and not kretprobe_blacklist(symbol)]
    if not functions:
        raise OSError(errno.EINVAL, f"the loading of libraries cannot be noticed in {opener.name}: {reason}")
    return [function.address for function in functions]


class LibraryWatch:
    """Calls `loaded()` for every library from `begin` on, as long as it `is_needed()`."""

    def __init__(self, loaded: Callable[[], None], is_needed: Callable[[], bool]) -> None:
        self._loaded = loaded
        self._is_needed = is_needed
        self._lock = fork.renew(threading.Lock())
        self._held_by = 0
        self._watch: Watch | None = None

    def begin(self) -> None:
        """Watch. Where dlopen cannot be probed, nothing is noticed."""
        with self._held(), contextlib.suppress(OSError):
            if self._watch is None and self._is_needed():
                self._watch = Watch(self._notice)
        if self._watch is not None:
            self._loaded()  # what was loaded meanwhile

    def end_unless_needed(self) -> None:
        """Remove the probes once they are not needed."""
        with self._held():
            if self._watch is not None and not self._is_needed():
                watch, self._watch = self._watch, None
                watch.end()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._held_by = threading.get_ident()
            try:
                yield
            finally:
                self._held_by = 0

    def _notice(self) -> None:
        """Registering and linking call dlopen, too: under the lock that is no news, and `loaded` may need the lock.

        Nor is a module of ours, of which its notifiers are told.
        """
        if self._held_by != threading.get_ident() and not is_opening():
            self._loaded()
