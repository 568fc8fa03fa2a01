"""Text that a fork has left to parent and child in common: whoever changes it first takes a copy.

Text lies in files in memory, whose pages all who map them share: after a plain fork, a patch in one process would run in the
other. So forks are counted, on both sides, by handlers that libc calls (pthread_atfork) also where no Python hook runs. Text
that was last its process's own at a lower count is copied before it is changed. The fork itself copies nothing, needs no
descriptor, and waits for nothing but a change under way (sandbox.process.atfork).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

text_mutex = threading.RLock()
"""Held by whoever changes text, as the kernel's text_mutex."""


class ForkWords(ctypes.Structure):
    """What Python and the handlers of a fork tell each other.

    `forks`: how many this process has seen, or its parent before. `under_way`: how many are; no change begins meanwhile.
    `writer`: `threading.get_ident()` of the thread that is changing text, or 0.
    """

    _fields_ = [("forks", ctypes.c_uint64), ("under_way", ctypes.c_uint64), ("writer", ctypes.c_uint64)]

    forks: int
    under_way: int
    writer: int


class SharedText(Protocol):
    """Text that lies in a file in memory."""

    def unshare(self) -> None:
        """Replace the pages by copies of this process's own, where they are, if there was a fork since that was last done."""


class Changes:
    """The changes of text in this process: one thread's at a time, and none while a fork is under way."""

    def __init__(self) -> None:
        self.words = ForkWords()
        """Moved, when forks are first counted, to memory that is never given back."""
        self.open: list[SharedText] = []
        """What is being changed now."""
        self.begin: Callable[[int], None] = self._set_writer
        """Sets `words.writer` when no fork is under way."""

    def _set_writer(self, thread: int) -> None:
        self.words.writer = thread

    @contextlib.contextmanager
    def of(self, text: SharedText) -> Iterator[None]:
        """Hold `text_mutex` and every fork off while `text` is changed, which is this process's own then. May be nested.

        Raises OSError if there is no memory for a copy.
        """
        with text_mutex:
            if not self.open:
                self.begin(threading.get_ident())
            self.open.append(text)
            try:
                text.unshare()
                yield
            finally:
                self.open.pop()
                if not self.open:
                    self.words.writer = 0


changes = Changes()
"""Those of this process."""
