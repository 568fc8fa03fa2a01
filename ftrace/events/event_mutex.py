"""The lock of everything that changes events, and what waits for hits until it has been released."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from ftrace.runtime import runtime
from ftrace.tracer import tracer
from sandbox.process import fork

event_mutex = threading.RLock()
"""Held while events are created, removed, enabled or disabled; before the locks of what produces them."""
fork.hold(event_mutex, level=-1)


class _Later(threading.local):
    """What a thread has put off until it has released the mutex."""

    depth = 0

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []


_later = _Later()


@contextlib.contextmanager
def events_locked() -> Iterator[None]:
    """Hold event_mutex. Handlers may want it too: they are waited for when it has been released."""
    with tracer().reclaimer.settling_later(), _putting_off(), event_mutex:
        yield


@contextlib.contextmanager
def _putting_off() -> Iterator[None]:
    _later.depth += 1
    try:
        yield
    finally:
        _later.depth -= 1
        if not _later.depth:
            due, _later.due = _later.due, []
            for call in due:
                call()


def after_unlocking(call: Callable[[], None]) -> None:
    """Call what waits for handlers: at once, or, within `events_locked`, when the mutex has been released."""
    if _later.depth:
        _later.due.append(call)
    else:
        call()


def let_go(used: object) -> None:
    """Free what hits have used until now when none does any more."""
    after_unlocking(partial(_keep_until_quiet, used))


_kept: list[object] = []


def _keep_until_quiet(used: object) -> None:
    """A hit that itself waits for others may be inside: then it is kept until another one can be waited for."""
    _kept.append(used)
    present = list(_kept)
    if runtime().quiesce():
        _kept[:] = [each for each in _kept if not any(each is other for other in present)]
