"""How long a thread has slept in a system call, from its files in /proc."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_LAST_RUN = re.compile(r"^se\.exec_start\s*:\s*([\d.]+)", re.MULTILINE)
_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


class Sleep:
    """The sleep that thread `thread` is in, if it is in one, as seen when this is made: before the thread is stopped."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._before = _switches(thread)
        last, now = _last_run(thread), _last_run(None)
        self._milliseconds = max(now - last, 0.0) if last is not None and now is not None else None

    @property
    def milliseconds(self) -> float:
        """How long it has slept; 0 if that is not known, or if it was another sleep that the stop has ended."""
        known = self._milliseconds
        is_same = self._before is not None and _switches(self._thread) == self._before + 1  # the stop itself
        return known if known is not None and is_same else 0.0


def _last_run(thread: int | None) -> float | None:
    """When a thread has last run, in milliseconds of the scheduler's clock; None: this process, which is running."""
    with contextlib.suppress(OSError):
        found = _LAST_RUN.search(Path(f"/proc/{thread or 'self'}/sched").read_text())
        return float(found[1]) if found else None
    return None


def _switches(thread: int) -> int | None:
    """How often it has begun to sleep."""
    with contextlib.suppress(OSError):
        found = _SLEPT.search(Path(f"/proc/{thread}/status").read_text(errors="replace"))
        return int(found[1]) if found else None
    return None
