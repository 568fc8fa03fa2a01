"""On whose behalf a thread acts: a record made for a request of another process carries that one's thread id and name."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from ftrace.core.runtime import runtime
from ftrace.tracing.instances.cmdlines import UNKNOWN, saved_cmdlines

_behalf = threading.local()
_NAME = struct.Struct("<QQ")


@contextlib.contextmanager
def as_task(tid: int, comm: str | None = None) -> Iterator[None]:
    """Within it, records and hits of this thread are those of thread `tid` of any process; 0: its own.

    `comm`: that thread's name, for hits that record names; None: it is read from /proc where a record is made from Python.
    """
    before = current_task(), getattr(_behalf, "comm", None)
    _act(tid, comm)
    try:
        yield
    finally:
        _act(*before)


def _act(tid: int, comm: str | None) -> None:
    _behalf.tid, _behalf.comm = tid, comm
    if tid and comm is not None:
        saved_cmdlines.save(tid, comm)
    elif tid:
        saved_cmdlines.acts_for(tid)
    name = (UNKNOWN if comm is None else comm).encode("utf-8", "surrogateescape")[:15].ljust(16, b"\0")
    runtime().image.call("act_as", tid, *_NAME.unpack(name))


def current_task() -> int:
    """The thread that this one acts for; 0 if it acts for itself."""
    return getattr(_behalf, "tid", 0)


def recording_task() -> int:
    """The same for a record that is about to be made: the thread's name is saved, which it may not have afterwards."""
    tid = current_task()
    if tid and getattr(_behalf, "comm", None) is None:
        with contextlib.suppress(OSError):  # it has ended
            saved_cmdlines.save(tid, comm_of(tid))
    return tid


def comm_of(tid: int) -> str:
    """The name of a thread of any process. Raises OSError."""
    return Path(f"/proc/{tid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n")
