"""event_mutex, the lock of all changes of events, and calls that are deferred until it is released."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from ftrace.core.runtime import runtime
from ftrace.core.tracer import tracer
from sandbox.process import fork

event_mutex = threading.RLock()
"""Held while events are created, removed, enabled or disabled; taken before the locks of kprobes and fprobes."""
fork.hold(event_mutex, level=-1)


class _Deferred(threading.local):
    """The calls that a thread has deferred until it releases the mutex."""

    depth = 0

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []


_deferred = _Deferred()


@contextlib.contextmanager
def events_locked() -> Iterator[None]:
    """Hold event_mutex. Since handlers may take it too, waiting for handlers is deferred until it is released."""
    with tracer().reclaimer.deferred(), _deferring(), event_mutex:
        yield


@contextlib.contextmanager
def _deferring() -> Iterator[None]:
    _deferred.depth += 1
    try:
        yield
    finally:
        _deferred.depth -= 1
        if not _deferred.depth:
            due, _deferred.due = _deferred.due, []
            for call in due:
                call()


def after_unlocking(call: Callable[[], None]) -> None:
    """Call `call`, which waits for handlers: at once, or, within `events_locked`, when the mutex is released."""
    if _deferred.depth:
        _deferred.due.append(call)
    else:
        call()


def free_after_hits(used: object) -> None:
    """Keep an object that hits have used until no hit uses it any more."""
    after_unlocking(partial(_keep_until_quiet, used))


_kept: list[object] = []


def _keep_until_quiet(used: object) -> None:
    """If a hit in progress is itself waiting, the object is kept until a later call can wait."""
    _kept.append(used)
    present = list(_kept)
    if runtime().quiesce():
        _kept[:] = [each for each in _kept if not any(each is other for other in present)]
