"""error_log: the last refused definitions and filters, each with a caret under the error."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ftrace.tracing.probe_args.errors import ProbeError
from sandbox.process import fork

_LIMIT = 8
_INDENT = " " * len("  Command: ")


def byte_position(text: str, position: int) -> int:
    """The number of bytes before character `position` of `text`, which may be beyond its end."""
    return position + len(text[:position].encode(errors="surrogateescape")) - len(text[:position])


def with_caret(message: str, text: str, position: int | None, hint: str = "") -> str:
    """A message for people, the text that it is about, a caret under character `position` of it, and what to write instead."""
    caret = f"\n  {' ' * position}^" if position is not None else ""
    return f"{message}\n  {text}{caret}" + (f"\n  {hint}" if hint else "")


class LoggedError(NamedTuple):
    """A refused command, with its error message; the caret is under character `position` of the command."""

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
    """Collect the errors that this thread reports in this context, to any log."""
    before, _listening.found = _listening.found, []
    try:
        yield _listening.found
    finally:
        _listening.found = before


class ErrorLog:
    """The last eight errors of one trace instance, oldest first."""

    def __init__(self) -> None:
        self._entries: deque[str] = deque(maxlen=_LIMIT)
        self._lock = fork.renew(threading.Lock())
        self._quiet = _Quiet()

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """Do not add errors of this thread in this context: for definitions that are tried again."""
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = False

    def add(self, subsystem: str, message: str, command: str, position: int) -> None:
        """Append an entry. Its caret is under character `position` of the command, after as many blanks as there are bytes."""
        if _listening.found is not None:
            _listening.found.append(LoggedError(subsystem, message, command, position))
        if self._quiet.on:
            return
        stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        when = f"{stamp // 1_000_000:5}.{stamp % 1_000_000:06}"
        caret = f"{_INDENT}{' ' * byte_position(command, position)}^"
        with self._lock:
            self._entries.append(f"[{when}] {subsystem}: error: {message}\n  Command: {command}\n{caret}\n")

    def add_probe_error(self, subsystem: str, words: Sequence[str], wrong: ProbeError) -> None:
        """Append a probe definition's error. `words`: those of the definition."""
        for finding in wrong.findings:
            self.add(subsystem, finding.code.value, " ".join(words), finding.position(words))

    def read(self) -> str:
        """The text of the file."""
        with self._lock:
            return "".join(self._entries)

    def clear(self) -> None:
        """Remove all entries, as opening the file with O_TRUNC does."""
        with self._lock:
            self._entries.clear()


error_log = ErrorLog()
"""The log of the top-level instance, which has every refused probe definition."""
