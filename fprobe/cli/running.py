"""Running the program in a thread of its own, while this one waits for it and for Ctrl-C.

Native code cannot be interrupted: after Ctrl-C it goes on, and so the process has to end under it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

STACK_SIZE = 1 << 26
"""Bytes of stack of the program's thread."""
_INTERVAL = 0.05


@dataclass
class Outcome:
    """What became of a call. `interrupted`: it has not returned, and will be left running."""

    result: Any = None
    error: BaseException | None = None
    interrupted: bool = False

    @property
    def returned(self) -> bool:
        """Whether there is a result."""
        return self.error is None and not self.interrupted


def run(call: Callable[[], Any], poll: Callable[[], None] = lambda: None) -> Outcome:
    """Make `call` in a thread of its own; call `poll` here every 50 ms meanwhile. Ctrl-C ends the waiting.

    From the first Ctrl-C on, SIGINT is ignored, so that a summary can follow.
    """
    outcome = Outcome()
    done = threading.Event()

    def work() -> None:
        try:
            outcome.result = call()
        except BaseException as error:
            outcome.error = error
        finally:
            done.set()

    try:
        _start(work)
        while not done.wait(_INTERVAL):
            poll()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not done.is_set():
            outcome = Outcome(interrupted=True)
    return outcome


def _start(work: Callable[[], None]) -> None:
    before = threading.stack_size(STACK_SIZE)
    try:
        threading.Thread(target=work, name="program", daemon=True).start()
    finally:
        threading.stack_size(before)


def end_process(code: int) -> NoReturn:
    """End the process at once: a thread that runs native code would outlive what it uses."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
