"""Processes that C code has forked from one that is attached to. They count natively, and leave when the attacher does.

No Python has run in them, so they do not know that they were forked. A thread that is started there, as for an attachment, tells
the interpreter so; what is registered for forks then leaves (`fprobe.run.tracee.attached`). Their text has been restored before,
by the process that has forked them, which does that also if the attacher is killed (`ftrace.core.sites.left_text`). If that
process has ended, they restore their own. A `Guard` lets them leave if the attacher is killed then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from sandbox.remote import inject, limits

_LEAVES = 5.0
"""Seconds in which such a process must have left."""
_ENDS = 2.0
"""Seconds in which a process that has been killed has ended."""
_POLLING = 0.005
_MODULE = "_fprobe_attached.fprobe.run.tracee.attached"
_LEAVING = f"import sys\nsys.modules[{_MODULE!r}].settle_forked()\n"


def dismiss(counts: int, pids: Iterable[int], first: str) -> list[int]:
    """Let those of the processes leave that have mapped the file of counts. `first`: what a thread there runs before.

    Returns those that did not: one was forked while a thread ran Python, and cannot run it any more.
    """
    return [pid for pid in pids if _has_mapped(pid, counts) and not _dismissed(pid, counts, first)]


class Guard:
    """A process that lets those leave that have mapped the file of counts, if this process ends without `end`.

    Its streams are closed, and it has no signals: whoever reads what this process writes does not wait for it, and it stays when
    a terminal goes. `process`: a pidfd of the one that was attached to; as long as it lives, it restores their text itself.
    """

    def __init__(self, counts: int, process: int, first: str) -> None:
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child:
            os.close(reader)
            os.waitpid(child, 0)
            return
        try:
            os.setsid()
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            if not os.fork():  # so it is no child of this process, which somebody may attach to with its children
                _close_all_but(reader, counts, process)
                if not os.read(reader, 1):
                    _dismiss_all(counts, process, first)
        finally:
            os._exit(0)

    def end(self, *, is_needed: bool) -> None:
        """This process has finished. `is_needed`: they have to leave yet."""
        with contextlib.suppress(OSError):  # somebody has killed it
            os.write(self._writer, b"" if is_needed else b"1")
        os.close(self._writer)


def _close_all_but(*kept: int) -> None:
    last = -1
    for each in sorted(kept):
        os.closerange(last + 1, each)
        last = each
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def _dismiss_all(counts: int, process: int, first: str) -> None:
    """Let all that have mapped the file leave, if the process that was attached to has ended: else it restores their text."""
    if select.select([process], [], [], _ENDS)[0]:
        dismiss(counts, [int(each) for each in os.listdir("/proc") if each.isdigit()], first)  # noqa: PTH208  # names only


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
    number = b"%d" % os.fstat(counts).st_ino
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_bytes().split(b"\n")[:-1]
        return any(line.split(None, 5)[4] == number and b"memfd:" in line for line in lines)
    return False
