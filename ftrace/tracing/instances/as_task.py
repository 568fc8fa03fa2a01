"""On whose behalf a thread writes: a record made for a request of another process carries that one's thread id and name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from ftrace.tracing.instances.cmdlines import saved_cmdlines

_behalf = threading.local()


@contextlib.contextmanager
def as_task(tid: int) -> Iterator[None]:
    """Within it, records that this thread makes from Python are those of thread `tid` of any process."""
    before = current_task()
    _behalf.tid = tid
    try:
        yield
    finally:
        _behalf.tid = before


def current_task() -> int:
    """The thread that this one writes for; 0 if it writes for itself."""
    return getattr(_behalf, "tid", 0)


def recording_task() -> int:
    """The same for a record that is about to be made: the thread's name is saved, which it may not have afterwards."""
    tid = current_task()
    if tid:
        with contextlib.suppress(OSError):  # it has ended
            saved_cmdlines.save(tid, Path(f"/proc/{tid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n"))
    return tid
