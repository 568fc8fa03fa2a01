"""Threads that block SIGTRAP, which a breakpoint would kill together with the process."""

from __future__ import annotations

import errno
import logging
import threading
import time
from typing import TYPE_CHECKING

from sandbox import signals, tasks

if TYPE_CHECKING:
    from ftrace.runtime import Runtime

log = logging.getLogger("ftrace")

_PATIENCE = 20


def refuse_blocked_traps(runtime: Runtime) -> None:
    """Raise OSError(EBUSY) while a thread blocks SIGTRAP that may run a breakpoint.

    Threads that neither Python nor the hit path has ever seen (a watchdog, a library's pool) are only logged.
    """
    blocking = _blocking_threads()
    if not blocking:
        return
    known = {task.tid for task in runtime.tasks()} | {thread.native_id for thread in threading.enumerate()}
    for tid, name in blocking:
        if tid not in known:
            log.info("thread %s (%d) blocks SIGTRAP; a breakpoint that it runs into would end the process", name, tid)
    named = ", ".join(f"{name} ({tid})" for tid, name in blocking if tid in known)
    if named:
        raise OSError(errno.EBUSY, f"breakpoints are needed to patch this, and SIGTRAP is blocked in {named}")


def _blocking_threads() -> list[tuple[int, str]]:
    """The threads that go on blocking SIGTRAP; one that begins or ends does so for a moment."""
    blocking = tasks.threads_blocking(signals.SIGTRAP)
    for _ in range(_PATIENCE):
        if not blocking:
            break
        time.sleep(0.001)
        blocking = [thread for thread in tasks.threads_blocking(signals.SIGTRAP) if thread in blocking]
    return blocking
