"""Work in a fork of this process: what it leaves behind is gone with it, and so is it if it crashes."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: int) -> None:
    """Send this process the signal `number` when its parent ends; at SIGABRT faulthandler says where it was."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def forked(what: str, work: Callable[[], None]) -> None:
    """Do `work` in a fork. Raises AssertionError, saying `what`, if it raises there or the process ends otherwise."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _end_with(work)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"
    assert code == 0, f"{what}: {ended}"


def _end_with(work: Callable[[], None]) -> None:
    code = 1
    try:
        gc.disable()  # what it makes lives as long as it does
        die_with_parent(signal.SIGABRT)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
