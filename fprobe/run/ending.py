"""Ends this process as another one ended: with its exit code, or by its signal."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def end_like(status: int) -> NoReturn:
    """End as the program did: with its exit code, or by its signal. Does not return."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    _without_core()
    end_by_signal(number)


def _without_core() -> None:
    """Prevent a core dump of the launcher; that of the program is enough."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def end_by_signal(number: int) -> NoReturn:
    """End the process by a signal's default action, even if the signal is blocked."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)
