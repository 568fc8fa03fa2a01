"""Threads of ours in a process that is not ours: the program does not find them, and signals do not."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable

from sandbox.process import fork
from sandbox.threads import signals
from sandbox.threads.uncounted import uncounted

_SYNCHRONOUS = {signal.SIGTRAP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
"""Signals that say what the thread itself has done."""


class OwnThread:
    """A daemon thread that runs `work`.

    All asynchronous signals are blocked in it: a signal to the process that the program's threads block must stay pending, for
    sigwait() for example. Others say what the thread itself has done; if they are sent, they are left to the program
    (`sandbox.threads.signals`). `threading` neither lists it nor has it traced. In the child of a fork it is not alive.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._process = os.getpid()
        self._identifier = 0
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(
                signal.SIG_BLOCK, signal.valid_signals() - _SYNCHRONOUS
            )  # may raise what a handler does
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        self._identifier = _thread.get_ident()
        signals.take_own_thread()
        try:
            with uncounted(), fork.delayed():
                self._work()
        finally:
            signals.release_own_thread()
            self._ended.set()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.is_set() and self._process == os.getpid()

    @property
    def is_running(self) -> bool:
        """Whether the caller is this thread."""
        return self._identifier == _thread.get_ident() and self.is_alive

    def join(self) -> None:
        """Wait until it has ended."""
        if self.is_alive:
            with fork.given_way():
                self._ended.wait()
