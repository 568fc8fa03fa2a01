"""Filters of threads and slots: set_ftrace_pid, set_event_pid, their notrace counterparts, and tracing_cpumask.

As kernel/trace/trace_pid.c and pid_list.c. Slots take the place of the kernel's CPUs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ftrace.core.kstrtox import kstrtoull
from ftrace.core.runtime import runtime
from ftrace.hit.pid_list import PIDS, PidList
from ftrace.hit.task_filter import TaskFilter
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.once import cached_property
from sandbox.threads import tasks

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


_GROUP = 32
_MASK = re.compile(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{1,8})*")


class DroppedSlots:
    """The slots whose records are dropped, as a bitmap that hits read. New slots are not dropped."""

    def __init__(self) -> None:
        self._bits = (ctypes.c_uint64 * (tasks.CAPACITY // 64))()
        self._dropped = 0

    @property
    def address(self) -> int:
        """Address of the bitmap; 0 if no slot is dropped."""
        return ctypes.addressof(self._bits) if self._dropped else 0

    def drop(self, dropped: int) -> None:
        """Drop the records of these slots. Bit i is slot i."""
        self._dropped = dropped
        for index in range(len(self._bits)):
            self._bits[index] = dropped >> 64 * index & (1 << 64) - 1

    def has_this_thread(self) -> bool:
        """Whether the records of the calling thread are dropped."""
        if not self._dropped:
            return False
        native: Any = TaskFilter.ctypes()
        native.dropped = self.address
        return bool(runtime().image.call("task_is_dropped_now", ctypes.addressof(native)) & 1)

    def traced(self, slots: int) -> int:
        """The mask of those of the first `slots` slots that are not dropped."""
        return (1 << slots) - 1 & ~self._dropped


def mask_text(mask: int, slots: int) -> str:
    """The text of a mask of `slots` bits, in groups of 32."""
    digits = -(-slots // 4)
    text = f"{mask:0{digits}x}"
    width = _GROUP // 4
    first = len(text) % width or width
    return ",".join([text[:first], *(text[at : at + width] for at in range(first, len(text), width))])


def written_mask(text: str, slots: int) -> int:
    """Parse a mask; an empty text is 0. Raises OSError: EINVAL for other text, EOVERFLOW for bits beyond `slots`."""
    digits = text.strip()
    if digits and not _MASK.fullmatch(digits):
        raise OSError(
            errno.EINVAL, f"the mask is {digits!r}; it must be hexadecimal digits, with a comma before every 8 of them"
        )
    groups = digits.split(",") if digits else ["0"]
    mask = 0
    for group in groups:
        mask = mask << _GROUP | int(group, 16)
    if mask >> slots:
        raise OSError(
            errno.EOVERFLOW, f"the mask is {digits!r}; only the lowest {slots} bits may be set, one for each slot"
        )
    return mask


_MAX_PID = 1 << 30
"""The number of pids that the kernel's lists have space for."""
_UINT_MAX = (1 << 32) - 1
ONLY, NEVER = "only", "never"
"""One of the two lists: threads that are recorded, or threads that are not."""


class PidLists:
    """The two lists of a trace array, for functions or for events. A pid here is a thread id.

    `slots`: the slots whose records are dropped, whatever the thread. `when_set`: called with whether there is a list, or such
    a slot, after each change.
    """

    def __init__(self, slots: DroppedSlots, when_set: Callable[[bool], None] = lambda _on: None) -> None:
        self._slots, self._when_set = slots, when_set
        self._lists: dict[str, TracePidList] = {}
        """The lists that are set. A list from which all threads have been removed is still set."""
        self._replaced: list[TracePidList] = []
        """Lists that hits may be looking into."""
        self._follows = False
        self._lock = fork.renew(threading.Lock())
        """Held while the lists change; `when_set` is called, and hits are waited for, without it."""

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
        with self._lock:
            found = self._lists.get(which)
            if found is None:
                return []
            if self._follows:
                found.leave_out_ended()
            return found.pids

    def clear(self, which: str) -> None:
        """Empty one list."""
        with self._lock:
            found = self._lists.pop(which, None)
            if found is None:
                return
            setattr(self._native, which, 0)
            self._replaced.append(found)
            replaced = list(self._replaced)
        self.follow_slots()
        if runtime().quiesce():
            with self._lock:
                self._replaced[:] = [each for each in self._replaced if not any(each is other for other in replaced)]

    def add(self, which: str, text: str) -> None:
        """Add ids, separated by blanks: all of them, or none.

        Raises OSError: EINVAL for what is no number, EPERM for a number that no thread can have.
        """
        pids = [_pid(word) for word in text.split()]
        if not pids:  # of a list that all threads have left, nothing remains then
            if not self.pids(which):
                self.clear(which)
            return
        is_first = False
        with self._lock:
            found = self._lists.get(which)
            if found is not None:
                found.add(pids)
            else:
                found = self._lists[which] = TracePidList(pids)
                setattr(self._native, which, found.address)
                is_first = True
            if self._follows:
                found.see_threads()
        if is_first:
            self.follow_slots()

    def follow_slots(self) -> None:
        """Apply a change of `slots`."""
        self._native.dropped = self._slots.address
        self._native.is_set = int(bool(self._lists) or bool(self._slots.address))
        self._when_set(bool(self._native.is_set))

    @property
    def places(self) -> list[int]:
        """The addresses of the words that the address of each native list is in, or 0."""
        return [self.address + TaskFilter.offset(which) for which in (ONLY, NEVER)]

    def follow_forks(self, on: bool) -> None:
        """Whether threads leave the lists at their ends, also those that end without notice."""
        with self._lock:
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
