"""Ring buffers of the program's processes, in the file of counts.

Each process, also the child of a fork, has its own memory for pages. All processes share one table of thread names.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fprobe.run import session
from ftrace.ring_buffer import comms
from ftrace.ring_buffer.layout import Geometry
from ftrace.ring_buffer.view import MemoryFile, RingView
from sandbox.memory import mappings

INSTANCE = "fprobe.run"
"""The instance in which the events are recorded, to keep them apart from the program's own tracing."""
_NUMBER = struct.Struct("<Q")
_FILE = struct.Struct("<8xQ8x")


class LauncherMemory:
    """The memory for `ftrace.ring_buffer.sharing`, in the launcher's file. Keeps no descriptor open."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._pid = os.getpid()

    def map_pages(self, size: int) -> int:
        """Address of memory for this process alone. Raises OSError: ENOSPC if none is left; also if the launcher has ended."""
        if self._pid != os.getpid():
            session.note(self._address, forked_by=self._pid)
            self._pid = os.getpid()
        return self._mapped(lambda counts: session.RINGS_AT + _take(counts) * session.RING, size)

    def map_comms(self, size: int) -> int:
        """Address of the table of thread names, which all processes share. Raises OSError if the launcher has ended."""
        return self._mapped(lambda _: session.COMMS_AT, size)

    def _mapped(self, offset: Callable[[int], int], size: int) -> int:
        counts = session.open_counts(self._address)
        try:
            return mappings.map_shared(counts, offset(counts), size)
        finally:
            os.close(counts)


def _take(counts: int) -> int:
    """The number of the next free memory. Unlocks explicitly, since the mapping keeps the lock after the descriptor is closed."""
    fcntl.flock(counts, fcntl.LOCK_EX)
    try:
        number = _taken(counts)
        if number == session.PARTS:
            raise OSError(errno.ENOSPC, f"{session.PARTS} processes have recorded events; no more can")
        os.pwrite(counts, _NUMBER.pack(number + 1), session.NEXT_RING_AT)
        return number
    finally:
        fcntl.flock(counts, fcntl.LOCK_UN)


def _taken(counts: int) -> int:
    return int(_NUMBER.unpack(os.pread(counts, _NUMBER.size, session.NEXT_RING_AT))[0])


class Recorded(NamedTuple):
    """The recorded events of a process, for the launcher. `clock`: the name of the clock."""

    pid: int
    ring: RingView
    clock: str


def read(counts: int) -> Iterator[Recorded]:
    """The rings of all processes, which may have ended at any instruction."""
    for number in range(_taken(counts)):
        at = session.RINGS_AT + number * session.RING
        (pages,) = _FILE.unpack(os.pread(counts, _FILE.size, at))
        if not pages:  # killed before it had written the header
            continue
        file = MemoryFile(_view(counts, at, Geometry(pages).size))
        for entry in file.rings():
            if entry.name == INSTANCE:
                yield Recorded(file.pid, RingView(file, entry.number, entry.order), entry.clock)


def comm_of(counts: int) -> Callable[[int], str]:
    """Returns comm(tid), the name of a thread; `<...>` if it is not known."""
    address = mappings.map_shared(counts, session.COMMS_AT, comms.SIZE)
    return lambda tid: comms.find_comm(address, tid) or "<...>"


def _view(counts: int, offset: int, size: int) -> memoryview:
    address = mappings.map_shared(counts, offset, size)
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
