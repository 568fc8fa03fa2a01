"""set_ftrace_pid, set_event_pid and their notrace counterparts: lists of thread ids. kernel/trace/trace_pid.c."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from ftrace.kstrtox import kstrtoull
from ftrace.runtime import runtime
from ftrace.tracers.cpumask import DroppedSlots
from ftrace.tracers.task_filter import TaskFilter
from ftrace.tracers.trace_pid_list import TracePidList
from sandbox.process.once import cached_property

_MAX_PID = 1 << 30
"""What the kernel's lists have space for."""
_UINT_MAX = (1 << 32) - 1
ONLY, NEVER = "only", "never"
"""One of the two lists: threads that are recorded, or threads that are not."""


class PidLists:
    """The two lists of a trace array, for functions or for events. A pid here is a thread id.

    `slots`: the slots whose records are dropped, whatever the thread.
    """

    def __init__(self, slots: DroppedSlots) -> None:
        self._slots = slots
        self._lists: dict[str, TracePidList] = {}
        """Those that are set. One that all threads have left still is."""
        self._replaced: list[TracePidList] = []
        """Lists that hits may be looking into."""
        self._follows = False

    @cached_property
    def _native(self) -> Any:
        return TaskFilter.ctypes()

    @property
    def address(self) -> int:
        """Address of the native TaskFilter."""
        return ctypes.addressof(self._native)

    def is_set(self, which: str) -> bool:
        """Whether one list was written since it was last cleared."""
        return which in self._lists

    def pids(self, which: str) -> list[int]:
        """The ids of one list, in order."""
        if which not in self._lists:
            return []
        if self._follows:
            self._lists[which].leave_out_ended()
        return self._lists[which].pids

    def clear(self, which: str) -> None:
        """Empty one list."""
        if which not in self._lists:
            return
        setattr(self._native, which, 0)
        self._replaced.append(self._lists.pop(which))
        self.follow_slots()
        if runtime().quiesce():
            self._replaced.clear()

    def add(self, which: str, text: str) -> None:
        """Add ids, separated by blanks: all of them, or none.

        Raises OSError: EINVAL for what is no number, EPERM for a number that no thread can have.
        """
        pids = [_pid(word) for word in text.split()]
        if not pids:  # of a list that all threads have left, nothing remains then
            if not self.pids(which):
                self.clear(which)
            return
        if which in self._lists:
            self._lists[which].add(pids)
        else:
            self._lists[which] = TracePidList(pids)
            setattr(self._native, which, self._lists[which].address)
            self.follow_slots()
        if self._follows:
            self._lists[which].see_threads()

    def follow_slots(self) -> None:
        """Apply a change of `slots`."""
        self._native.dropped = self._slots.address
        self._native.is_set = int(bool(self._lists) or bool(self._slots.address))

    @property
    def places(self) -> list[int]:
        """The addresses of the words that the address of each native list is in, or 0."""
        return [self.address + TaskFilter.offset(which) for which in (ONLY, NEVER)]

    def follow_forks(self, on: bool) -> None:
        """Whether threads leave the lists at their ends, also those that end without notice."""
        self._follows = on
        for pids in self._lists.values():
            pids.see_threads()


def _pid(text: str) -> int:
    """A thread id, as trace_pid_write() and trace_pid_list_set() read it: only its low 32 bits count."""
    try:
        pid = kstrtoull(text) & _UINT_MAX
    except OSError:
        raise OSError(errno.EINVAL, f"the thread id is {text[:80]!r}; it must be a number") from None
    if pid >= _MAX_PID:
        raise OSError(errno.EPERM, f"the thread id is {text}; it must be between 0 and {_MAX_PID - 1}")
    return pid
