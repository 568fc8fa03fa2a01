"""A signal's handler that is called again and again, and never by a signal that arrives in it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def alarms(seconds: float, handler: Callable[[], object]) -> Iterator[list[object]]:
    """Call `handler` that long after its last end, in this thread. Yields its results.

    A periodic timer has handlers interrupt each other on a busy machine, until Python raises RecursionError somewhere.
    """
    results: list[object] = []

    def ring(*_: object) -> None:
        results.append(handler())
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield results
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # first: a handler would set the timer once more
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
