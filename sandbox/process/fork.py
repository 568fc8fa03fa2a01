"""fork: what has to be done around it, by Python's hooks and by libc's.

The forking thread of `os.fork` holds the text mutex over the fork, and the locks of those who change what is probed. How text
stays each process's own is sandbox.memory.shared_text's.
"""

from __future__ import annotations

import ctypes
import errno
import os
from bisect import insort
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

from sandbox.memory.shared_text import changes, text_mutex

_around: list[tuple[Close, ...]] = []
"""What has been told of the fork under way, and so has to be told of its end; of several, if a hook of somebody else's forks."""


_held: list[tuple[int, Any]] = []


def hold(lock: Any, level: int) -> None:
    """Every fork waits for `lock`, so that no other thread has it in the child, or is half-way through what it is for.

    Elsewhere too locks of a lower `level` are taken before those of a higher one, and `text_mutex` after all of them: only
    then a thread that forks and one that has some of them do not wait for each other.
    """
    insort(_held, (level, lock), key=itemgetter(0))


def _take() -> None:
    for _, lock in _held:
        lock.acquire()
    text_mutex.acquire()


def _give() -> None:
    text_mutex.release()
    for _, lock in reversed(_held):
        lock.release()


class Close(Protocol):
    """What has to be done closely around every fork."""

    def before(self) -> None:
        """Called with all locks held; other threads may run Python meanwhile."""

    def after_in_parent(self) -> None:
        """Called before anything is waited for."""

    def after_in_child(self) -> None:
        """The same, in the child."""


_close: list[Close] = []


def closely_around(what: Close) -> None:
    """From now on, of all that `install` does before a fork `what` comes last, and of all that it does afterwards first."""
    _close.append(what)


def _before() -> None:
    _take()
    _around.append(tuple(_close))
    for what in _around[-1]:
        what.before()


def _in_parent() -> None:
    try:
        for what in _around.pop():
            what.after_in_parent()
        _unshare_open_text()
    finally:
        _give()


def _in_child() -> None:
    try:
        for what in _around.pop():
            what.after_in_child()
        for step in _in_new_process:
            step()
        _unshare_open_text()
    finally:
        _give()


def _unshare_open_text() -> None:
    """A change of this very thread was interrupted by the fork, and will go on."""
    for text in changes.open:
        text.unshare()


def at_fork(prepare: int, in_parent: int, in_child: int) -> None:
    """Let libc call the functions at these addresses (0: none) around every fork that it makes, also where no Python hook runs.

    As pthread_atfork, which glibc has under another name in its shared library: `prepare` in reverse order of these calls. They
    stay to the end of the process. Raises OSError(ENOMEM).
    """
    libc = ctypes.CDLL(None)
    register = getattr(libc, "__register_atfork", None) or libc.pthread_atfork
    register.argtypes = (ctypes.c_void_p,) * 4
    if register(prepare, in_parent, in_child, None):
        raise OSError(errno.ENOMEM, "no memory for a handler of forks")


_renewed: list[Any] = []


def renew(lock: Any) -> Any:
    """In the child of every fork `lock` (a threading.Lock or RLock) is free again, if it was not the forking thread's own.

    For locks whose state is good at any moment, and which it would take too long, or be in the wrong order, to hold over
    the fork. Returns the lock.
    """
    if not _renewed:
        os.register_at_fork(after_in_child=_renew_all)
    _renewed.append(lock)
    return lock


def _renew_all() -> None:
    for lock in _renewed:
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()


_in_new_process: list[Callable[[], None]] = []


def install(*in_child: Callable[[], None]) -> None:
    """Take part in every os.fork() from now on. Called when the first text is mapped.

    `in_child`: what the child does again for itself, before any text is changed there.
    """
    _in_new_process.extend(in_child)
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
