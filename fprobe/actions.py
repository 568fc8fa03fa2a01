"""Built-in actions: handlers that need no code of the user's. Each is an attachment's `entry`/`exit` pair.

attach("vfs_*", action=Count())      hits only: `fp.hits`
attach("vfs_*", action=Record())     a time-stamped record per call, in a ring of each thread's own
attach("vfs_*", action=Stat())       hits, misses and time per function
"""

from __future__ import annotations

import ctypes
import errno
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.handlers.kinds import Resolved
from ftrace.hit import actions as native
from ftrace.hit.actions import CELL_SIZE, HEADER_SIZE, RECORD_SIZE
from ftrace.runtime import runtime
from ftrace.tracer import tracer
from sandbox.memory import mappings
from sandbox.native.handler import Fields
from sandbox.threads import tasks

if TYPE_CHECKING:
    from fprobe.registration import fprobe

_RECORD = native.Record.ctypes
_CELL = native.Cell.ctypes


class Action:
    """A built-in pair of handlers. `entry` and `exit` are None where there is nothing to do."""

    entry_data_size = 0

    def __init__(self) -> None:
        self.entry: Resolved | None = None
        self.exit: Resolved | None = None

    def belong_to(self, fp: fprobe) -> None:
        """Called before `prepare` with the fprobe that it is for. Raises OSError(EBUSY) if it serves only one at a time, and

        does so already.
        """

    def prepare(self, functions: int) -> None:
        """Called before registration with the number of functions."""

    @property
    def state(self) -> int:
        """Address of the native ActionState, or 0."""
        return 0


def _handler(name: str, keep: Any = None) -> Resolved:
    return Resolved(runtime().image.address(name), plain=True, registers=Fields(), keep=keep)


class Count(Action):
    """Count hits."""

    def prepare(self, functions: int) -> None:
        self.entry = _handler("count_entry")


class CallRecord(NamedTuple):
    """One call. `entered` and `left` are time-stamp counter readings; `ticks_per_ns()` converts."""

    entered: int
    left: int
    ip: int
    caller: int
    thread: int


class _Memory:
    """An area of `stride` bytes for each task. It is given back when no probe, action or reader refers to it any more."""

    def __init__(self, stride: int) -> None:
        size = stride * tasks.CAPACITY
        self.native: Any = native.ActionState.ctypes()
        self.native.base, self.native.stride = mappings.reserve(size), stride
        weakref.finalize(self, mappings.release, self.native.base, size).atexit = False

    def areas(self) -> Iterator[tuple[int, Any]]:
        """Address of the area and record of every task ever claimed."""
        for index, task in enumerate(runtime().tasks()):
            yield self.native.base + index * self.native.stride, task


class _Areas(Action):
    """An action with an area of memory per task, reserved at each registration. Its probe keeps it, too."""

    entry_data_size = 8

    def __init__(self) -> None:
        super().__init__()
        self._memory: _Memory | None = None
        self._owner: fprobe | None = None

    def belong_to(self, fp: fprobe) -> None:
        with tracer().table.lock:
            if self._owner is not fp:
                self._refuse_if_in_use()
            self._owner = fp

    def _refuse_if_in_use(self) -> None:
        owner = self._owner
        if owner is not None and (owner.registered or owner.is_claimed):
            raise OSError(errno.EBUSY, f"this {type(self).__name__} is in use: detach it, or make another one")

    @property
    def state(self) -> int:
        return ctypes.addressof(self._memory.native) if self._memory is not None else 0

    def _reserve(self, names: tuple[str, str], header: int, count: int, size: int, bits: int) -> None:
        """Memory, and the handlers with these names, which keep it."""
        self._memory = _Memory((header + count * size + mappings.PAGE - 1) & -mappings.PAGE)
        self._memory.native.mask, self._memory.native.shift = count - 1, 64 - bits
        self.entry, self.exit = (_handler(name, self._memory) for name in names)

    def close(self) -> None:
        """Give the memory back. Raises OSError(EBUSY) while the action is in use."""
        with tracer().table.lock:
            self._refuse_if_in_use()
            self.entry = self.exit = None
            self._memory = None


class Record(_Areas):
    """Record each call that returns while tracing is on: entry and return time, function, caller. A full ring overwrites its
    oldest records.

    `capacity`: records per thread, a power of two.
    """

    def __init__(self, capacity: int = 1 << 15) -> None:
        super().__init__()
        if capacity <= 0 or capacity & capacity - 1:
            raise ValueError(f"the capacity of a ring is a power of two, not {capacity}")
        self.capacity = capacity

    def prepare(self, functions: int) -> None:
        self._reserve(("record_entry", "record_exit"), HEADER_SIZE, self.capacity, RECORD_SIZE, 0)

    @property
    def written(self) -> int:
        """Records ever written."""
        return sum(self._heads())

    @property
    def lost(self) -> int:
        """Records that newer ones have overwritten."""
        return sum(max(0, head - self.capacity) for head in self._heads())

    def _heads(self) -> Iterator[int]:
        known = self._memory
        return (ctypes.c_uint64.from_address(area).value for area, _ in known.areas()) if known else iter(())

    def records(self) -> Iterator[CallRecord]:
        """What the rings hold, thread by thread, oldest first."""
        known = self._memory
        for area, task in known.areas() if known else ():
            head = ctypes.c_uint64.from_address(area).value
            for number in range(max(0, head - self.capacity), head):
                place = area + HEADER_SIZE + (number & self.capacity - 1) * RECORD_SIZE
                record = _RECORD.from_address(place)
                yield CallRecord(record.entered, record.left, record.ip, record.caller, task.tid)


@dataclass
class FunctionStat:
    """What `Stat` gathered for one function. `total_ns`: time between entry and return, of the calls that were timed."""

    ip: int
    hits: int
    missed: int
    total_ns: float


class Stat(_Areas):
    """Count and time the calls of each function."""

    _cells = 0

    def prepare(self, functions: int) -> None:
        bits = max(4, (2 * functions - 1).bit_length())
        self._cells = 1 << bits
        self._reserve(("stat_entry", "stat_exit"), 0, self._cells, CELL_SIZE, bits)

    def functions(self) -> dict[int, FunctionStat]:
        """Entry address -> what is known of the function, over all threads. Functions without a hit are left out."""
        found: dict[int, FunctionStat] = {}
        scale = 1 / ticks_per_ns()
        known = self._memory
        cells = _CELL * (known.native.mask + 1) if known else _CELL * 0
        for area, _task in known.areas() if known else ():
            for cell in cells.from_address(area):
                if cell.ip:
                    stat = found.setdefault(cell.ip, FunctionStat(cell.ip, 0, 0, 0.0))
                    stat.hits += cell.hits
                    stat.missed += cell.missed
                    stat.total_ns += cell.ticks * scale
        return found


@cache
def ticks_per_ns() -> float:
    """The rate of the time-stamp counter, measured once over 10 ms."""
    import time

    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(runtime().image.address("read_tsc"))
    start, first = time.perf_counter_ns(), read()
    while time.perf_counter_ns() - start < 10_000_000:
        pass
    last = read()
    return float(last - first) / (time.perf_counter_ns() - start)
