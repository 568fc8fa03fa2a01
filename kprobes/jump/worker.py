"""Threads that run delayed work: the optimiser's, and the one that frees what belongs to code of JIT compilers that has gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from sandbox.process import fork
from sandbox.threads.own_thread import OwnThread

log = logging.getLogger("kprobes")

DELAY = 0.05
"""Seconds from the first kick to the run, as OPTIMIZE_DELAY in kernel/kprobes.c."""


class Worker:
    """The thread, and the time of its next run. Later kicks do not postpone the run. It ends when nothing is left to be run.

    `run` does the work that `is_pending` says there is; if it raises OSError, it is tried again later.
    """

    def __init__(self, run: Callable[[], None], is_pending: Callable[[], bool]) -> None:
        self._run, self._is_pending = run, is_pending
        self._reset()
        fork.in_child(fork.Phase.THREADS, self._after_fork)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: float | None = None
        self._thread: OwnThread | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop the thread. When this returns, it has ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    @property
    def is_running(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is not None and self._thread.is_running

    def _after_fork(self) -> None:
        self._reset()
        if self._is_pending():
            self.kick()

    def kick(self) -> None:
        """Run once, no later than DELAY from now."""
        with self._changed:
            if self._stopped:
                return
            if self._due is None:
                self._due = time.monotonic() + DELAY
                self._changed.notify()
            if self._thread is None:
                self._thread = OwnThread(self._work)

    def cancel(self) -> None:
        """The work has been done by another thread: cancel the run."""
        with self._changed:
            self._due = None

    def join_if_idle(self) -> None:
        """Return when the thread has ended, if nothing is left to be run."""
        with self._changed:
            thread = None if self._is_pending() else self._thread
            self._due = None if thread else self._due
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while self._wait():
            try:
                self._run()
            except OSError as error:
                log.warning("delayed work on kprobes is tried again later: %s", error)
            if self._is_pending():
                self.kick()

    def _wait(self) -> bool:
        """Wait until a run is due. False if there will be none, and the thread ends."""
        with self._changed:
            while not self._stopped and self._due is not None and self._due > time.monotonic():
                with fork.given_way():
                    self._changed.wait(self._due - time.monotonic())
            ending = self._stopped or self._due is None
            self._due = None
            if ending:
                self._thread = None
            return not ending
