"""Text that parent and child share after a fork: copied by the process that changes it first.

Text is in files in memory, whose pages are shared by all processes that map them: after a plain fork, a patch in one process
would run in the other. So both sides count forks, in handlers that libc calls (pthread_atfork) even where no Python hook runs.
Each text has the count at which it became its process's own; if the count is higher now, the text is copied before it is
changed. The fork itself copies nothing, needs no descriptor, and waits only for a change in progress (sandbox.threads.atfork).
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Protocol

text_mutex = threading.RLock()
"""Held while text is changed, as the kernel's text_mutex."""


class ForkWords(ctypes.Structure):
    """The words that Python and the libc fork handlers share.

    `forks`: the number of forks of this process, and of its parent before. `in_progress`: forks in progress, during which
    no change begins.
    `writer`: `threading.get_ident()` of the thread that is changing text, or 0.
    """

    _fields_ = [("forks", ctypes.c_uint64), ("in_progress", ctypes.c_uint64), ("writer", ctypes.c_uint64)]

    forks: int
    in_progress: int
    writer: int


class SharedText(Protocol):
    """Text in a file in memory."""

    def unshare(self) -> None:
        """Replace the pages in place by this process's own copies, if there was a fork since this was last done."""


class Changes:
    """The changes of text in this process: one thread's at a time, and none during a fork."""

    def __init__(self) -> None:
        self.words = ForkWords()
        """Moved to memory that is never freed when forks are first counted."""
        self.open: list[SharedText] = []
        """The texts being changed now."""
        self.begin: Callable[[int], int] = self._set_writer
        """Sets `words.writer` unless a fork is in progress; returns whether it has, and below waits for the end of forks."""
        self.begin_after_forks: Callable[[int], object] = self._set_writer

    def _set_writer(self, thread: int) -> int:
        self.words.writer = thread
        return 1


changes = Changes()
"""The changes of this process; sandbox.memory.mappings.changing makes one."""
