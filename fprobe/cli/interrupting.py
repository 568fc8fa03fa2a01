"""Ctrl-C at any moment of a command: the command ends with status 130; one that runs a program prints its summary."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from fprobe.cli.console import Console


INTERRUPTED = 130
"""The exit code after Ctrl-C."""
_SOON = 0.002
"""Seconds until Ctrl-C is tried again."""


class Interrupted(SystemExit):
    """Raised by Ctrl-C before the program runs. Not a KeyboardInterrupt: click turns that into an exit code of 1."""


class CtrlC:
    """How this process handles Ctrl-C."""

    def __init__(self) -> None:
        self.presses = 0
        """How often it was pressed, or what counts as that."""
        self.reported = False
        """Whether the summary has reported the interruption."""
        self._is_held = False
        self._has_raised = False
        self._reporting = threading.Lock()

    @property
    def pressed(self) -> bool:
        """Whether the command is to end."""
        return self.presses > 0

    def report(self) -> None:
        """Say that the command was interrupted, unless that was reported already."""
        with self._reporting:
            if not self.reported:
                print("fprobe: interrupted", file=sys.stderr, flush=True)
            self.reported = True

    def install(self) -> None:
        """From now on Ctrl-C sets `pressed`, and raises Interrupted once; unless it is ignored, as in the background."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._press)
        sys.unraisablehook = _ignore_interrupted

    def hold(self) -> None:
        """From now on Ctrl-C only sets `pressed`, so that a summary always follows."""
        self._is_held = True

    def hold_for_run(self) -> None:
        """As `hold`, before the program runs. Raises Interrupted if Ctrl-C was pressed: a callback may have lost that."""
        self.hold()
        if self.pressed:
            raise Interrupted(INTERRUPTED)

    def _press(self, _number: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self._is_held or self._has_raised:
            return
        if _is_in_llvmlite(frame):
            _thread.start_new_thread(_press_again, ())
            return
        self._has_raised = True
        raise Interrupted(INTERRUPTED)


def _is_in_llvmlite(frame: FrameType | None) -> bool:
    """Whether llvmlite is running: it frees a string twice if an exception comes between freeing it and noting that."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("llvmlite."):
            return True
        frame = frame.f_back
    return False


def _press_again() -> None:
    time.sleep(_SOON)
    os.kill(os.getpid(), signal.SIGINT)


def _ignore_interrupted(unraisable: Any) -> None:
    """sys.unraisablehook, for exceptions of destructors and callbacks: hides Interrupted."""
    if not isinstance(unraisable.exc_value, Interrupted):
        sys.__unraisablehook__(unraisable)


ctrl_c = CtrlC()
"""The process's handling of Ctrl-C."""


def end_interrupted() -> NoReturn:
    """End the process at once, after Ctrl-C."""
    ctrl_c.report()
    end_process(INTERRUPTED)


def summarise_nothing(console: Console) -> None:
    """Print the summary of a run that Ctrl-C ended before the program was called."""
    counts = {"hits": 0, "missed": 0, "missed_by_cause": {}, "handler_errors": 0, "interrupted": True}
    console.line("interrupted before the program was called")
    console.note("0 hits, 0 misses")
    console.object({"type": "summary", "matched": 0, "attached": 0, "skipped": 0, **counts})
    console.flush()
    ctrl_c.reported = True


def end_process(code: int) -> NoReturn:
    """End the process at once: in an orderly exit, a thread that runs native code would outlive the memory that it uses."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
