"""error_log: the last refused definitions and filters, each with a caret under what was wrong."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ftrace.probe_args.errors import ProbeError
from sandbox.process import fork

_LIMIT = 8
_INDENT = " " * len("  Command: ")


class LoggedError(NamedTuple):
    """What was refused, and why: a caret stands under character `position` of the command."""

    subsystem: str
    message: str
    command: str
    position: int


class _Quiet(threading.local):
    on = False


class _Listening(threading.local):
    found: list[LoggedError] | None = None


_listening = _Listening()


@contextlib.contextmanager
def errors_heard() -> Iterator[list[LoggedError]]:
    """The errors that this thread reports while this is entered, to whichever log."""
    before, _listening.found = _listening.found, []
    try:
        yield _listening.found
    finally:
        _listening.found = before


class ErrorLog:
    """The errors of one trace instance, the oldest first; the ninth replaces the first."""

    def __init__(self) -> None:
        self._entries: deque[str] = deque(maxlen=_LIMIT)
        self._lock = fork.renew(threading.Lock())
        self._quiet = _Quiet()

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Add nothing that this thread reports: for what is tried again."""
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = False

    def add(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append an entry, with a caret under character `position` of the command."""
        if _listening.found is not None:
            _listening.found.append(LoggedError(subsystem, message, command, position))
        if self._quiet.on:
            return
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        when = f"{stamp // 1_000_000:5}.{stamp % 1_000_000:06}"
        caret = f"{_INDENT}{' ' * position}^"
        with self._lock:
            self._entries.append(f"[{when}] {subsystem}: error: {message}\n  Command: {command}\n{caret}\n")

    def add_probe_error(self, subsystem: str, words: Sequence[str], wrong: ProbeError) -> None:
        """Append what was wrong with the definition that these words make."""
        for finding in wrong.findings:
            self.add(subsystem, finding.code.value, " ".join(words), finding.position(words))

    def read(self) -> str:
        """What the file reads."""
        with self._lock:
            return "".join(self._entries)

    def clear(self) -> None:
        """Forget the entries, as opening the file with O_TRUNC does."""
        with self._lock:
            self._entries.clear()


error_log = ErrorLog()
"""That of the top-level instance, which gets every refused probe definition."""
