"""Getting the GIL back soon, for what gives it up a thousand times: imports, system calls, LLVM.

A thread that wants the GIL waits for the switch interval, 5 ms, before it requests it. With two threads that compute, the first
probe in a process took ten seconds of waiting.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections.abc import Iterator

from sandbox.process import fork

_INTERVAL = 1e-4
"""Seconds."""


class _Interval:
    """The process's switch interval, which is short while any thread is `inside`."""

    def __init__(self) -> None:
        self._lock = fork.renew(threading.Lock())
        self._inside: list[int] = []
        self._usual = 0.0
        os.register_at_fork(after_in_child=self._only_this_thread)

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual, _INTERVAL))
            self._inside.append(threading.get_ident())

    def leave(self) -> None:
        with self._lock:
            self._inside.remove(threading.get_ident())
            self._restore()

    def _restore(self) -> None:
        """Unless somebody has set another one since."""
        if not self._inside and math.isclose(sys.getswitchinterval(), _INTERVAL):
            sys.setswitchinterval(self._usual)

    def _only_this_thread(self) -> None:
        """In the child of a fork there is no other."""
        if self._inside:
            self._inside = [thread for thread in self._inside if thread == threading.get_ident()]
            self._restore()


_interval = _Interval()


@contextlib.contextmanager
def short_switch_interval() -> Iterator[None]:
    """Within it, a thread that wants the GIL has it after a tenth of a millisecond. Also a decorator."""
    _interval.enter()
    try:
        yield
    finally:
        _interval.leave()
