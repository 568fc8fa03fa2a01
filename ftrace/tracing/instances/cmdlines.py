"""saved_cmdlines: the names of threads that have recorded.

A running thread is shown with its present name. A thread that has ended is shown with the last name that was shown, or with
the name it had at its first record.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from ftrace.ring_buffer.arena import arena
from ftrace.ring_buffer.reader import Record

UNKNOWN = "<...>"
MAX_CAPACITY = 1 << 15
"""PID_MAX_DEFAULT: the maximum of saved_cmdlines_size."""
_HEAD = 4 * (MAX_CAPACITY + 1) + 20
"""Size of struct saved_cmdlines_buffer of kernel/trace/trace_sched_switch.c without the names, in bytes."""
_EACH = 20
_PAGE = 4096


def capacity_for(count: int) -> int:
    """The capacity that the kernel provides for `count` names: as many as fit into the power of two of pages it allocates."""
    pages = -(-(_HEAD + count * _EACH) // _PAGE)
    return ((1 << (pages - 1).bit_length()) * _PAGE - _HEAD) // _EACH


DEFAULT_CAPACITY = capacity_for(128)


class SavedCmdlines:
    """Names by thread id. `capacity`: the maximum number of names."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._forgotten: frozenset[int] = frozenset()
        """Threads whose names were lost when the capacity was set."""
        self._capacity = DEFAULT_CAPACITY
        self._is_recording = True
        self._acted_for: set[int] = set()
        """Threads of other processes on whose behalf hits may have been recorded."""

    def record(self, on: bool) -> None:
        """Choose whether new threads' names are saved (the option record-cmd, or a tracer)."""
        if on != self._is_recording:
            self._is_recording = on
            arena().keep_comms(on)

    @property
    def capacity(self) -> int:
        """The maximum number of names; rounded up as in the kernel.

        Setting it drops all names, as tracing_resize_saved_cmdlines() does. Raises OSError(EINVAL) if it is out of range.
        """
        return self._capacity

    @capacity.setter
    def capacity(self, count: int) -> None:
        if not 1 <= count <= MAX_CAPACITY:
            raise OSError(errno.EINVAL, f"saved_cmdlines_size is {count}; it must be between 1 and {MAX_CAPACITY}")
        self._capacity = capacity_for(count)
        self._names.clear()
        self._forgotten = frozenset(arena().recorded_threads())

    def find(self, tid: int) -> str:
        """The name of a thread; `<...>` if it is not known."""
        if tid == 0:
            return "<idle>"
        kept = self._names.get(tid) or (arena().comm(tid) if tid not in self._forgotten else None)
        name = (_comm(tid) if kept or self._is_recording else None) or kept
        if name is None and tid in self._acted_for:
            name = _comm(tid, "/proc")
        if name is None:
            return UNKNOWN
        self.save(tid, name)
        return name

    def save(self, tid: int, name: str) -> None:
        """Save the name of a thread. If there are too many, the oldest is dropped."""
        names = self._names
        if tid not in names and len(names) >= self._capacity:
            del names[next(iter(names))]
        names[tid] = name

    def acts_for(self, tid: int) -> None:
        """Note a thread of another process, whose name can be found while it lives."""
        if len(self._acted_for) >= MAX_CAPACITY:
            self._acted_for.clear()
        self._acted_for.add(tid)

    def read(self) -> str:
        """The file saved_cmdlines: `TID NAME` for each line."""
        for tid in arena().recorded_threads():
            self.find(tid)
        return "".join(cmdline(tid, name) for tid, name in sorted(self._names.items()))


def cmdline(tid: int, name: str) -> str:
    """A line of the file. A name with an end of line, which the kernel shows as it is, cannot make up one for another thread."""
    one_line = name.replace("\n", " ")
    return f"{tid} {one_line}\n"


def _comm(tid: int, among: str = "/proc/self/task") -> str | None:
    try:
        return Path(f"{among}/{tid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n")
    except OSError:
        return None


saved_cmdlines = SavedCmdlines()
"""The process's saved names."""


class SavedTgids:
    """saved_tgids: the threads whose process is known, since they recorded while record-tgid was on."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._known: set[int] = set()

    def switch(self, since: int | None) -> None:
        """Save threads that record from `since` on, by the buffer's clock; None: no further threads."""
        self._since = since

    @property
    def is_saving(self) -> bool:
        """Whether threads are saved that records show."""
        return self._since is not None

    def see(self, records: Iterable[Record]) -> None:
        """Save the threads of these records."""
        since = self._since
        if since is not None:
            self._known.update(record.common.pid for record in records if record.stamp >= since)

    def column(self, tid: int) -> str:
        """The column of the option record-tgid."""
        return f"({os.getpid():7})" if tid in self._known else f"({'-' * 7})"

    def read(self) -> str:
        """The file saved_tgids: `TID TGID` for each line."""
        return "".join(f"{tid} {os.getpid()}\n" for tid in sorted(self._known))
