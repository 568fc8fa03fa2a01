"""Running the program in a separate thread, while the main thread waits for it and for Ctrl-C.

Native code cannot be interrupted: it continues after Ctrl-C, so the process has to end while it runs.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fprobe.cli.exiting import told_of_exit
from fprobe.cli.interrupting import ctrl_c

STACK_SIZE = 1 << 26
"""Bytes of stack of the program's thread."""
_INTERVAL = 0.05


@dataclass
class Outcome:
    """How a call ended. `interrupted`: it has not returned, and is left running. `exited`: the status that it passed to
    `exit`."""

    result: Any = None
    error: BaseException | None = None
    interrupted: bool = False
    exited: int | None = None

    @property
    def returned(self) -> bool:
        """Whether there is a result."""
        return self.error is None and not self.interrupted and self.exited is None


def run(call: Callable[[], Any], poll: Callable[[], bool] = lambda: False) -> Outcome:
    """Run `call` in a separate thread until it returns, raises or exits, or Ctrl-C is pressed. The caller holds Ctrl-C.

    Meanwhile this thread calls `poll` every 50 ms, or again at once if it returned True.
    """
    if ctrl_c.pressed:
        return Outcome(interrupted=True)
    outcome = Outcome()
    done = threading.Event()

    def work() -> None:
        try:
            outcome.result = call()
            _flush_c_streams()
        except BaseException as error:
            outcome.error = error
        finally:
            done.set()

    def leave(status: int) -> None:
        _flush_c_streams()
        outcome.exited = status
        done.set()
        while True:
            time.sleep(3600)

    with told_of_exit(leave):
        _start(work)
        while not ctrl_c.pressed:
            if done.wait(0 if poll() else _INTERVAL):
                return outcome
    return outcome if done.is_set() else Outcome(interrupted=True)


def _flush_c_streams() -> None:
    """Flush the C library's streams, so that the program's output precedes ours."""
    ctypes.CDLL(None).fflush(None)


def _start(work: Callable[[], None]) -> None:
    before = threading.stack_size(STACK_SIZE)
    try:
        threading.Thread(target=work, name="program", daemon=True).start()
    finally:
        threading.stack_size(before)
