"""Ctrl-C, at any moment of a command: it ends with status 130, and what is to run a program with a summary."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fprobe.cli.console import Console

INTERRUPTED = 130
"""The exit code after Ctrl-C."""


class Interrupted(SystemExit):
    """Raised where Ctrl-C comes while nothing runs yet. No KeyboardInterrupt, of which click makes an exit code of 1."""


class CtrlC:
    """What has become of Ctrl-C in this process."""

    def __init__(self) -> None:
        self.pressed = False
        self.reported = False
        """Whether the summary says so."""
        self._is_held = False

    def install(self) -> None:
        """From now on Ctrl-C raises Interrupted, once, and sets `pressed`; unless it is ignored, as in the background."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._press)
        sys.unraisablehook = _ignore_interrupted

    def hold(self) -> None:
        """From now on it only sets `pressed`, so that a summary always follows."""
        self._is_held = True

    def check(self) -> None:
        """Raise Interrupted if it was pressed: what was raised then may have been lost in a callback."""
        if self.pressed:
            raise Interrupted(INTERRUPTED)

    def _press(self, _number: int, _frame: FrameType | None) -> None:
        is_first, self.pressed = not self.pressed, True
        if is_first and not self._is_held:
            raise Interrupted(INTERRUPTED)


def _ignore_interrupted(unraisable: Any) -> None:
    """For exceptions that cannot go on, from destructors and callbacks."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


ctrl_c = CtrlC()
"""Of this process."""


def summarise_nothing(console: Console) -> None:
    """The summary of a run that Ctrl-C ended before the program was called."""
    counts = {"hits": 0, "missed": 0, "missed_by_cause": {}, "handler_errors": 0, "interrupted": True}
    console.line("interrupted before the program was called")
    console.note("0 hits, 0 misses")
    console.object({"type": "summary", "matched": 0, "attached": 0, "skipped": 0, **counts})
    console.flush()
    ctrl_c.reported = True
