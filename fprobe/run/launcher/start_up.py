"""What is done until a process has its probes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from fprobe.run import session

if TYPE_CHECKING:
    from fprobe.run.launcher.launching import Program

_POLLING = 0.02
_PATIENCE = 10.0
"""Seconds after which a program is not waited for that has told nothing: it is not covered."""


Progress = Callable[[Callable[[], str]], AbstractContextManager[None]]
"""Shows the text of a function inside a block, if that takes long."""


def no_progress(_text: Callable[[], str]) -> AbstractContextManager[None]:
    """Shows nothing."""
    return nullcontext()


class StartUp:
    """What is done now: by this process, first `text`, until the other one's journal tells more."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._journal: int | None = None
        self._offset = 0
        self._is_over = False

    def say(self, text: str) -> None:
        """Something else is done from now on."""
        self._text = text

    def follow(self, journal: int) -> None:
        """From now on the process tells in its journal."""
        self._journal = journal

    def end(self) -> None:
        """The journal is about to be closed."""
        self._journal, self._is_over = None, True

    def text_now(self) -> str:
        """What is done, such as `probing 2,000 functions`; empty if that is not known, or the process has its probes."""
        if self._journal is not None:
            found, self._offset = session.entries_since(self._journal, self._offset)
            for entry in found:
                self._text = entry.get("doing", self._text)
                self._is_over = self._is_over or "armed" in entry or "not_covered" in entry
        return "" if self._is_over else self._text

    def is_over(self) -> bool:
        """Whether the process has its probes, or will not have any."""
        return not self.text_now() and self._is_over


class ProgramStart:
    """The start of a program, whose first line runs after the line of progress is erased from the terminal."""

    def __init__(self, program: Program, counts: int, journal: int) -> None:
        self._program, self._counts = program, counts
        self._start_up = StartUp()
        self._start_up.follow(journal)

    def shown_text(self) -> str:
        """The text for the terminal. From now on the program waits, until `end`, before it begins."""
        session.show_progress(self._counts, is_shown=True)  # first: the program looks here after it has said `armed`
        return self._start_up.text_now()

    def wait(self) -> None:
        """Wait until the program has its probes, or has ended. While it is stopped, this process stops, too."""
        patience = time.monotonic() + _PATIENCE
        ended = os.pidfd_open(self._program.pid)
        try:
            while not (self._start_up.is_over() or select.select([ended], [], [], _POLLING)[0]):
                if number := self._program.stopped_by():
                    self._program.stop(number)
                if not self._start_up.text_now() and time.monotonic() > patience:
                    break
        finally:
            os.close(ended)

    def end(self) -> None:
        """The terminal is the program's."""
        session.show_progress(self._counts, is_shown=False)
