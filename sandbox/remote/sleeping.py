"""How long a thread has slept in a system call, at least: since it was first looked at, if that was the same sleep."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

_SLEPT = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


class Sleep:
    """The sleep that thread `thread` is in when this is made, which is before it is stopped."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._before = _switches(thread)
        self._since = time.monotonic()

    @property
    def milliseconds(self) -> float:
        """How long it has slept since then; 0 if it was another sleep that the stop has ended."""
        is_same = self._before is not None and _switches(self._thread) == self._before + 1  # the stop itself
        return (time.monotonic() - self._since) * 1000 if is_same else 0.0


def _switches(thread: int) -> int | None:
    """How often it has begun to sleep."""
    with contextlib.suppress(OSError):
        found = _SLEPT.search(Path(f"/proc/{thread}/status").read_text(errors="replace"))
        return int(found[1]) if found else None
    return None
