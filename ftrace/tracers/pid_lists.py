"""set_ftrace_pid, set_event_pid and their notrace counterparts: lists of thread ids. kernel/trace/trace_pid.c."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from ftrace.kstrtox import kstrtoull
from ftrace.tracers.address_sets import AddressSets
from ftrace.tracers.cpumask import DroppedSlots
from ftrace.tracers.task_filter import TaskFilter
from sandbox.process.cached import cached_property
from sandbox.process.integers import INT_MAX

ONLY, NEVER = "only", "never"
"""One of the two lists: threads that are recorded, or threads that are not."""


class PidLists:
    """The two lists of a trace array, for functions or for events. A pid here is a thread id.

    `slots`: the slots whose records are dropped, whatever the thread.
    """

    def __init__(self, slots: DroppedSlots) -> None:
        self._slots = slots
        self._pids: dict[str, frozenset[int]] = {ONLY: frozenset(), NEVER: frozenset()}
        self._tables = AddressSets()

    @cached_property
    def _native(self) -> Any:
        return TaskFilter.ctypes()

    @property
    def address(self) -> int:
        """Address of the native TaskFilter."""
        return ctypes.addressof(self._native)

    def pids(self, which: str) -> list[int]:
        """The ids of one list, in order."""
        return sorted(self._pids[which])

    def clear(self, which: str) -> None:
        """Empty one list."""
        self._replace(which, frozenset())

    def add(self, which: str, text: str) -> None:
        """Add ids, separated by blanks. Raises OSError(EINVAL) for an invalid id, and adds none then."""
        self._replace(which, self._pids[which] | frozenset(map(_pid, text.split())))

    def _replace(self, which: str, pids: frozenset[int]) -> None:
        if pids == self._pids[which]:
            return
        setattr(self._native, which, self._tables.replace(which, pids))
        self._pids[which] = pids
        self.follow_slots()
        self._tables.forget_replaced()

    def follow_slots(self) -> None:
        """Apply a change of `slots`."""
        self._native.dropped = self._slots.address
        self._native.is_set = int(any(self._pids.values()) or bool(self._slots.address))


def _pid(text: str) -> int:
    try:
        pid = kstrtoull(text, 0)
    except OSError:
        pid = -1
    if not 0 <= pid <= INT_MAX:
        raise OSError(errno.EINVAL, f"the thread id is {text!r}; it must be between 0 and {INT_MAX}")
    return pid
