"""Processes that C code has forked from one that is attached to. They count natively, and leave when the attacher does.

No Python has run in them, so they do not know that they were forked. A thread that is started there, as for an attachment, tells
the interpreter so; what is registered for forks then leaves (`fprobe.run.tracee.attached`). Their text has been restored before,
by the process that has forked them, which does that also if the attacher is killed (`ftrace.core.sites.left_text`).
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from sandbox.remote import inject, limits

_LEAVES = 5.0
"""Seconds in which such a process must have left."""
_POLLING = 0.005
_MODULE = "_fprobe_attached.fprobe.run.tracee.attached"
_LEAVING = f"import sys\nsys.modules[{_MODULE!r}].settle_forked()\n"


def dismiss(counts: int, pids: Iterable[int], first: str) -> list[int]:
    """Let those of the processes leave that have mapped the file of counts. `first`: what a thread there runs before.

    Returns those that did not: one was forked while a thread ran Python, and cannot run it any more.
    """
    return [pid for pid in pids if _has_mapped(pid, counts) and not _dismissed(pid, counts, first)]


def _dismissed(pid: int, counts: int, first: str) -> bool:
    """Whether the process has left, or has ended."""
    with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as opened:
        process = os.pidfd_open(pid)
        opened.callback(os.close, process)
        try:
            prepared = inject.prepare(pid, first + _LEAVING)
            opened.callback(prepared.process.close)
            limits.check(pid)
            running = inject.start(prepared, process)
        except OSError:
            return not _has_mapped(pid, counts)
        end = time.monotonic() + _LEAVES
        while time.monotonic() < end:
            if select.select([process], [], [], _POLLING)[0] or not _has_mapped(pid, counts):
                return True
        running.cancel()
        return False
    return True


def _has_mapped(pid: int, counts: int) -> bool:
    """Whether the memory of the process shows this file."""
    number = str(os.fstat(counts).st_ino)
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        return any(line.split(None, 5)[4] == number and "memfd:" in line for line in lines)
    return False
