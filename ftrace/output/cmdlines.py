"""saved_cmdlines: the names of the threads that records are of.

A thread is shown by the name that it has; one that has ended by the last that was shown, or that with which it recorded first.
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
"""PID_MAX_DEFAULT: the most names that can be asked for."""
_HEAD = 4 * (MAX_CAPACITY + 1) + 20
"""Bytes of struct saved_cmdlines_buffer in front of the names, of kernel/trace/trace_sched_switch.c."""
_EACH = 20
_PAGE = 4096


def capacity_for(count: int) -> int:
    """How many names the kernel has room for when so many are asked for: it fills what it allocates, a power of two of pages."""
    pages = -(-(_HEAD + count * _EACH) // _PAGE)
    return ((1 << (pages - 1).bit_length()) * _PAGE - _HEAD) // _EACH


DEFAULT_CAPACITY = capacity_for(128)


class SavedCmdlines:
    """Names by thread id. `capacity`: how many are kept."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._capacity = DEFAULT_CAPACITY
        self._is_recording = True

    def record(self, on: bool) -> None:
        """Whether threads that record for the first time become known, by the option record-cmd or by a tracer."""
        if on != self._is_recording:
            self._is_recording = on
            arena().keep_comms(on)

    @property
    def capacity(self) -> int:
        """How many names are kept; rounded up as the kernel does. Raises OSError(EINVAL) for a number that is out of range."""
        return self._capacity

    @capacity.setter
    def capacity(self, count: int) -> None:
        if not 1 <= count <= MAX_CAPACITY:
            raise OSError(errno.EINVAL, f"saved_cmdlines_size is {count}; it must be between 1 and {MAX_CAPACITY}")
        self._capacity = capacity_for(count)
        for tid in list(self._names)[: max(len(self._names) - self._capacity, 0)]:
            del self._names[tid]

    def find(self, tid: int) -> str:
        """The name of a thread, `<...>` for one that was never seen."""
        if tid == 0:
            return "<idle>"
        kept = self._names.get(tid) or arena().comm(tid)
        name = (_comm(tid) if kept or self._is_recording else None) or kept
        if name is None:
            return UNKNOWN
        self.save(tid, name)
        return name

    def save(self, tid: int, name: str) -> None:
        """Keep the name of a thread; of too many the one that was kept first is forgotten."""
        names = self._names
        if tid not in names and len(names) >= self._capacity:
            del names[next(iter(names))]
        names[tid] = name

    def read(self) -> str:
        """The file saved_cmdlines: `TID NAME` for each line."""
        for tid in arena().recorded_threads():
            self.find(tid)
        return "".join(f"{tid} {name}\n" for tid, name in sorted(self._names.items()))


def _comm(tid: int) -> str | None:
    try:
        return Path(f"/proc/self/task/{tid}/comm").read_text("utf-8", "surrogateescape").removesuffix("\n")
    except OSError:
        return None


saved_cmdlines = SavedCmdlines()
"""Those of this process."""


class SavedTgids:
    """saved_tgids: of which threads it is known what process they are of. Those that recorded while record-tgid was on."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._known: set[int] = set()

    def switch(self, since: int | None) -> None:
        """Threads that record from `since` on, by the buffer's clock, are known; None: no further ones."""
        self._since = since

    def see(self, records: Iterable[Record]) -> None:
        """Note the threads of these records."""
        since = self._since
        if since is not None:
            self._known.update(record.common.pid for record in records if record.stamp >= since)

    def column(self, tid: int) -> str:
        """The column of the option record-tgid."""
        return f"({os.getpid():7})" if tid in self._known else f"({'-' * 7})"

    def read(self) -> str:
        """The file saved_tgids: `TID TGID` for each line."""
        return "".join(f"{tid} {os.getpid()}\n" for tid in sorted(self._known))
