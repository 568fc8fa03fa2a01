"""A list of thread ids with a native half that hits read: struct trace_pid_list in kernel/trace/pid_list.c."""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Iterable
from pathlib import Path

from ftrace.hit.pid_list import PIDS, PidList
from ftrace.runtime import runtime
from sandbox.memory import mappings

_TASKS = Path("/proc/self/task")
_NONZERO = re.compile(rb"[^\0]")


class TracePidList:
    """The list. Its memory, at `address`, goes with the object: no hit may be looking into it then."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.address = mappings.reserve(PidList.size)
        weakref.finalize(self, mappings.release, self.address, PidList.size).atexit = False
        self._beyond: set[int] = set()
        """Ids that no thread can have."""
        self._seen: tuple[int, frozenset[int]] = 0, frozenset()
        """A process, and those of its threads that were in the list at some time."""
        self.add(pids)

    def add(self, pids: Iterable[int]) -> None:
        """Add ids, while hits look into the list."""
        for pid in pids:
            if pid < PIDS:
                runtime().image.call("trace_pid_list_set", self.address, pid)
            else:
                self._beyond.add(pid)

    @property
    def pids(self) -> list[int]:
        """The ids, in order."""
        data = ctypes.string_at(self.address, PidList.size)
        return [
            found.start() * 8 + bit for found in _NONZERO.finditer(data) for bit in range(8) if found[0][0] >> bit & 1
        ] + sorted(self._beyond)

    def see_threads(self) -> None:
        """Remember which of the ids are threads of this process now: `leave_out_ended` is about them."""
        self._seen = os.getpid(), frozenset(self.pids) & _threads()

    def leave_out_ended(self) -> None:
        """Remove threads that ended without notice, since they had never hit a probe."""
        process, seen = self._seen
        if process != os.getpid():  # they are those of a process that this one was forked from
            return
        for pid in seen - _threads():
            runtime().image.call("trace_pid_list_clear", self.address, pid)
        self.see_threads()


def _threads() -> frozenset[int]:
    return frozenset(int(task.name) for task in _TASKS.iterdir())
