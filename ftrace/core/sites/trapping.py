"""Threads that block SIGTRAP: a breakpoint that one hits would kill the process."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.threads import signals
from sandbox.threads.blocked_signals import threads_blocking

if TYPE_CHECKING:
    from ftrace.core.runtime import Runtime

log = logging.getLogger("ftrace")

_PATIENCE = 20
"""How long a thread that sleeps may block SIGTRAP, in milliseconds."""
_RUNS = 5_000_000
"""How long one that does not sleep may run meanwhile, in nanoseconds."""
_LONGEST = 2.0
"""Seconds in which it must have run so long: on a busy machine, a thread that starts waits for the processor."""
every_thread_counts = [False]
"""Whether threads that neither Python nor the hit path knows are refused, too: those of a program that did not ask for probes."""
_strangers = set[int]()
"""The unknown threads that blocked SIGTRAP at the last check."""


class TrapsBlocked(OSError):
    """A thread that may hit a breakpoint blocks SIGTRAP. `errno` is EBUSY."""

    def __init__(self, threads: str) -> None:
        super().__init__(
            errno.EBUSY,
            f"breakpoints are needed to patch this, and SIGTRAP is blocked in {threads}; unblock it there first",
        )


def refuse_blocked_traps(runtime: Runtime) -> None:
    """Raise TrapsBlocked while a thread that may hit a breakpoint blocks SIGTRAP.

    Threads that neither Python nor the hit path knows (a watchdog, a library's pool) are only logged, unless
    `every_thread_counts`.
    """
    blocking = _blocking_threads(runtime)
    if not blocking:
        return
    known = _known_threads(runtime)
    for tid in set(blocking) - known - _strangers:
        log.info("thread %s (%d) blocks SIGTRAP; a breakpoint that it hits would kill the process", _name(tid), tid)
    _strangers.clear()
    _strangers.update(set(blocking) - known)
    named = ", ".join(f"{_name(tid)} ({tid})" for tid in blocking if tid in known)
    if named:
        raise TrapsBlocked(named)


def _known_threads(runtime: Runtime) -> set[int]:
    if every_thread_counts[0]:
        return set(map(int, os.listdir("/proc/self/task")))  # noqa: PTH208  # names only
    return {task.tid for task in runtime.tasks()} | {thread.native_id or 0 for thread in threading.enumerate()}


def _name(tid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{tid}/comm").read_text(errors="replace").strip()
    return "that has ended"


def _blocking_threads(runtime: Runtime) -> list[int]:
    """The threads that keep SIGTRAP blocked. Starting and ending threads block it only briefly, so those are waited for."""
    blocking = threads_blocking(runtime.image, signals.SIGTRAP)
    patience = {tid: _Patience(tid) for tid in blocking}
    while sum(patience[tid].is_left() for tid in blocking):
        if not set(blocking) - _strangers and not _strangers & _known_threads(runtime):
            break
        time.sleep(0.001)
        blocking = [tid for tid in threads_blocking(runtime.image, signals.SIGTRAP) if tid in blocking]
    return blocking


class _Patience:
    """With a thread that blocks SIGTRAP, and may be about to unblock it."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._left = _PATIENCE
        self._end = time.monotonic() + _LONGEST
        self._ran, _ = _running(tid)

    def is_left(self) -> bool:
        """Whether to wait another millisecond."""
        ran, sleeps = _running(self._tid)
        is_left = self._left > 0 and ran - self._ran < _RUNS and time.monotonic() < self._end
        self._left -= sleeps
        return is_left


def _running(tid: int) -> tuple[int, bool]:
    """How long a thread has run, in nanoseconds, and whether it sleeps; (0, True) if that is not known."""
    directory = Path(f"/proc/self/task/{tid}")
    try:
        ran = int((directory / "schedstat").read_text().split()[0])
        return ran, (directory / "stat").read_text(errors="replace").rpartition(") ")[2][:1] not in ("R", "D")
    except (OSError, ValueError, IndexError):
        return 0, True
