"""The phases of a fork: which callbacks run when.

`os.fork()` runs these phases; within a phase, callbacks run in the order of their registration.

  in the parent, before   HOLD     locks whose state must be consistent in the child are taken      hold()
                          CLOSE    before()                                                         innermost()
  by libc, before         a change of text ends, and none begins; the forking
                          thread counts in private memory                          at_fork()
  by libc, after          forks are counted; in the child all rows of counters
                          are private, Python handlers are off, and records of
                          threads that are gone are released                       at_fork()
  in the parent, after    CLOSE    after_in_parent()
                          TEXT     text that the forking thread is changing is copied if shared
                          HOLD     the locks are given back
  in the child            RENEW    locks of threads that are gone are free again                    renew()
                          CLOSE    after_in_child()
                          KERNEL   registrations that a child does not inherit are renewed          in_child()
                          TEXT, HOLD as in the parent
                          TASKS    their nodes go back to their pools                               in_child()
                          PROBES   what their calls had taken from probes is released               in_child()
                          BUFFERS  memory that the parent records into is replaced                  in_child()
                          THREADS  our worker threads are started again                             in_child()

A fork made by C code runs only what libc runs. How text stays each process's own is described in sandbox.process.shared_text.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import errno
import functools
import os
import sys
import threading
import weakref
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from sandbox.process import private_names
from sandbox.process.shared_text import changes, text_mutex

Item = TypeVar("Item")
_BETWEEN = 256
"""Items between two moments at which forks may go on."""
_GATE = "_fprobe_gate"
"""Attribute of `sys`: the gate of an interpreter that was brought into a program in machine code."""


class Phase(enum.IntEnum):
    """The phases of the child that callbacks can be registered for, in their order."""

    KERNEL = 0
    TASKS = 1
    PROBES = 2
    BUFFERS = 3
    THREADS = 4


class Close(Protocol):
    """Callbacks that run last before every fork, and first after it."""

    def before(self) -> None:
        """Called with all locks held; other threads may run Python meanwhile."""

    def after_in_parent(self) -> None:
        """Called before anything is waited for."""

    def after_in_child(self) -> None:
        """The same, in the child."""


_held: list[tuple[int, Any]] = []
_close: list[Close] = []
_in_child: list[tuple[Phase, Callable[[], None]]] = []
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()


class _Fork(NamedTuple):
    """A fork in progress, with what was registered when it began: another thread may be registering more."""

    thread: int
    held: tuple[Any, ...]
    close: tuple[Close, ...]


_around: list[_Fork] = []
"""The fork in progress; several, if another fork hook forks."""


def hold(lock: Any, level: int) -> None:
    """Hold `lock` over every fork, so that no other thread has it in the child, or has left its data half changed.

    Everywhere, locks of a lower `level` are taken before those of a higher one, and `text_mutex` after all of them; otherwise
    a forking thread could deadlock with a thread that has some of them.
    """
    insort(_held, (level, lock), key=itemgetter(0))


def innermost(what: Close) -> None:
    """Call `what` around every fork, in the CLOSE phase."""
    _close.append(what)


def in_child(phase: Phase, call: Callable[[], None]) -> None:
    """Run `call` in the child of every fork. An exception in it is reported, and the others run."""
    insort(_in_child, (phase, call), key=itemgetter(0))


def not_in_child(call: Callable[[], None]) -> None:
    """Undo `in_child` of this call."""
    _in_child[:] = [entry for entry in _in_child if entry[1] != call]


def renew(lock: Any) -> Any:
    """Free `lock` (a threading.Lock or RLock) in the child of every fork, unless the forking thread itself has it.

    For locks whose data is valid at any moment, and that cannot be held over the fork: that would take too long, or would be in
    the wrong order. Returns the lock.
    """
    _watch_renewed()
    _renewed.add(lock)
    return lock


@cache
def _watch_renewed() -> None:
    os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    for lock in _renewed:
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()


_installing = renew(threading.RLock())
_installed: list[bool] = []


def install() -> None:
    """Run the phases around every os.fork() from now on. Called when the first text is mapped; further calls do nothing.

    Raises RuntimeError if this Python lacks what that needs.
    """
    with _installing:
        if not _installed:
            private_names.check()
            os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
            _installed.append(True)


def _before() -> None:
    held = tuple(lock for _, lock in _held)
    for lock in (*held, text_mutex):
        lock.acquire()
    _around.append(_Fork(threading.get_ident(), held, tuple(_close)))
    for what in _around[-1].close:
        what.before()


def _ended() -> _Fork | None:
    """The fork of this thread that has ended; None if it began before `install`."""
    return _around.pop() if _around and _around[-1].thread == threading.get_ident() else None


def _after_in_parent() -> None:
    if ended := _ended():
        _run(*(what.after_in_parent for what in ended.close), _unshare_open_text, functools.partial(_give, ended))


def _after_in_child() -> None:
    first = [call for phase, call in _in_child if phase is Phase.KERNEL]
    last = [call for phase, call in _in_child if phase is not Phase.KERNEL]
    if ended := _ended():
        _run(
            *(what.after_in_child for what in ended.close),
            *first,
            _unshare_open_text,
            functools.partial(_give, ended),
            *last,
        )


def _run(*calls: Callable[[], None]) -> None:
    """Call all of them in order, and report exceptions, which the interpreter would ignore."""
    for call in calls:
        try:
            call()
        except BaseException:  # locks are given back whatever else fails
            print(f"fprobe: exception in {call} after a fork, ignored", file=sys.stderr)
            sys.excepthook(*sys.exc_info())


def _unshare_open_text() -> None:
    """Changes of this thread that the fork has interrupted will continue, on text of the process's own."""
    for text in changes.open:
        text.unshare()


def _give(ended: _Fork) -> None:
    text_mutex.release()
    for lock in reversed(ended.held):
        lock.release()


def at_fork(prepare: int, in_parent: int, in_child: int) -> None:
    """Let libc call the functions at these addresses (0: none) around every fork, also where no Python hook runs.

    As pthread_atfork, which glibc has under another name in its shared library: `prepare` in reverse order of these calls. They
    stay registered until the process ends. Raises OSError(ENOMEM).
    """
    libc = ctypes.CDLL(None)
    register = getattr(libc, "__register_atfork", None) or libc.pthread_atfork
    register.argtypes = (ctypes.c_void_p,) * 4
    if register(prepare, in_parent, in_child, None):
        raise OSError(errno.ENOMEM, "out of memory: libc cannot register a fork handler")


def give_way() -> None:
    """Let forks go on that wait until no Python runs which was brought into the program (`sandbox.x86_64.fork_gate`).

    Called often, where no lock of the C library is held. Does nothing while this thread changes text: the child would be
    without the one that finishes.
    """
    gate: Any = vars(sys).get(_GATE)
    if gate is not None and not text_mutex._is_owned():  # type: ignore[attr-defined]  # undocumented
        gate.give_way()


def giving_way(items: Iterable[Item]) -> Iterable[Item]:
    """The same items, of which there may be thousands; between some of them forks go on that wait."""
    return _giving_way(items) if _GATE in vars(sys) else items


def _giving_way(items: Iterable[Item]) -> Iterator[Item]:
    for number, item in enumerate(items):
        if number % _BETWEEN == 0:
            give_way()
        yield item


def given_way() -> contextlib.AbstractContextManager[None]:
    """Inside the block this thread waits for something, and forks go on."""
    return _through_gate("leave", "enter")


def delayed() -> contextlib.AbstractContextManager[None]:
    """Inside the block forks wait, except while it gives way, if such an interpreter runs it."""
    return _through_gate("enter", "leave")


@contextlib.contextmanager
def _through_gate(way: str, back: str) -> Iterator[None]:
    gate: Any = vars(sys).get(_GATE)
    has_moved = gate is not None and getattr(gate, way)()
    try:
        yield
    finally:
        if has_moved:
            getattr(gate, back)()


@functools.cache
def start_by_fork() -> None:
    """Let `subprocess` start children by fork from now on, by its documented switches. Called when library code is patched.

    A child made by vfork or posix_spawn runs in this process's memory, with every signal blocked, until it executes another
    program: a breakpoint hit before that kills it. A child made by fork has memory of its own, and our handlers.
    Python 3.14 has no switch for vfork any more: kprobes.place.vforks replaces vfork itself, for all callers. In children
    of other callers of posix_spawn (`os.posix_spawn`, C's `system`), ftrace.core.sites.signal_masks keeps SIGTRAP unblocked.
    """
    import subprocess

    for switch in ("_USE_VFORK", "_USE_POSIX_SPAWN"):
        if hasattr(subprocess, switch):
            setattr(subprocess, switch, False)


class ProcessBound:
    """Base of objects that cannot be pickled: another process would use their addresses as its own."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {self!r}: it belongs to this process; load or make it in the other one")
