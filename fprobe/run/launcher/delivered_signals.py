"""A process that distinguishes signals to the launcher's process group from signals to the launcher alone.

It is in the group, as the program is. Signals of the terminal, or of the shell's `kill %1`, go to the whole group: the program
gets them itself. Only signals to the launcher alone must be forwarded.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Collection
from pathlib import Path

from sandbox.process.parent import end_with

_PATIENCE = 0.01
"""Seconds in which a signal to the group reaches all of its processes."""
_POLLING = 0.005
_RECENT = 1.0
"""Seconds after which a report is of another signal with the same number."""
_REPORT = struct.Struct("<Id")


class DeliveredSignals:
    """The process. It ends with the launcher. `numbers`: the signals that it reports, which are blocked when it is made."""

    def __init__(self, numbers: Collection[int]) -> None:
        self._reports, write = os.pipe()
        self._seen: list[tuple[int, float]] = []
        launcher = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _report(launcher, numbers, write)
        os.close(write)

    def has_seen(self, number: int) -> bool:
        """Whether the group has just got this signal. Not to be called by a handler in such a call."""
        end = time.monotonic() + _PATIENCE
        while not self._take(number):
            has_reported_all = time.monotonic() >= end and self._is_asleep()
            if select.select([self._reports], [], [], 0 if has_reported_all else _POLLING)[0]:
                data = os.read(self._reports, 64 * _REPORT.size)
                if not data:  # somebody has killed it
                    return False
                self._seen += _REPORT.iter_unpack(data)
            elif has_reported_all:
                return False
        return True

    def _is_asleep(self) -> bool:
        """Whether it waits for a signal. One that it has got wakes it at once, even if it is not scheduled yet."""
        return Path(f"/proc/{self._pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"S", b"T", b"Z")

    def _take(self, number: int) -> bool:
        oldest = time.monotonic() - _RECENT
        self._seen = [each for each in self._seen if each[1] >= oldest]
        found = next((each for each in self._seen if each[0] == number), None)
        if found is not None:
            self._seen.remove(found)
        return found is not None

    def end(self) -> None:
        """End the process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._reports)


def _report(launcher: int, numbers: Collection[int], write: int) -> None:
    """Runs in the reporting process, without the launcher's streams: their readers wait until nobody has them."""
    try:
        end_with(launcher)
        os.closerange(0, write)
        os.closerange(write + 1, 1 << 16)
        while os.getppid() == launcher:
            os.write(write, _REPORT.pack(signal.sigwaitinfo(numbers).si_signo, time.monotonic()))
    finally:
        os._exit(0)
