"""The optimiser's thread: delayed work."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from sandbox.process import fork

log = logging.getLogger("kprobes")

DELAY = 0.05
"""Seconds from the first kick to the run."""
NAME = "kprobe-optimizer"
"""The thread's."""


class Work(Protocol):
    """What is to be done."""

    @property
    def busy(self) -> bool:
        """Whether there is something."""

    def run(self) -> None:
        """Do it. Raises OSError if it has to be tried again later."""


class Worker:
    """The thread, and when it runs next: later kicks do not postpone that."""

    def __init__(self, optimizer: Work) -> None:
        self._optimizer = optimizer
        self._reset()
        fork.in_child(fork.Phase.THREADS, self._after_fork)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due: float | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def stop(self) -> None:
        """No more runs: when this returns the thread has ended."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _after_fork(self) -> None:
        self._reset()
        if self._optimizer.busy:
            self.kick()

    def kick(self) -> None:
        """Run once, DELAY from now at the latest."""
        with self._changed:
            if self._stopped:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=NAME, daemon=True)
                self._thread.start()
            if self._due is None:
                self._due = time.monotonic() + DELAY
                self._changed.notify()

    def cancel(self) -> None:
        """Somebody has run everything."""
        with self._changed:
            self._due = None

    def _work(self) -> None:
        while self._wait():
            try:
                self._optimizer.run()
            except OSError as error:
                log.warning("jumps of kprobes are taken back later: %s", error)
            if self._optimizer.busy:
                self.kick()

    def _wait(self) -> bool:
        """Until a run is due; False: there will be none."""
        with self._changed:
            while not self._stopped and (self._due is None or self._due > time.monotonic()):
                self._changed.wait(None if self._due is None else self._due - time.monotonic())
            self._due = None
            return not self._stopped
