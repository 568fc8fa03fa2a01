"""Built-in actions: ready-made pairs of entry and exit handlers.

attach("vfs_*", action=Count())      hits only: `fp.hits`
attach("vfs_*", action=Record())     a time-stamped record of each call, in a ring buffer
attach("vfs_*", action=Stat())       hits, misses and time per function
"""

from __future__ import annotations

import ctypes
import errno
import struct
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.runtime import runtime
from ftrace.core.summary import Row, Summary, table
from ftrace.core.tracer import tracer
from ftrace.hit import actions as native
from ftrace.hit.actions import CELL_SIZE, RECORD_SIZE, TIMED_CELL_SIZE
from ftrace.hit.ring_buffer.layout import event_size
from ftrace.ring_buffer.buffer import Buffer
from sandbox.memory import mappings
from sandbox.native.handler import Fields
from sandbox.process.fork import ProcessBound
from sandbox.process.integers import whole
from sandbox.symbols.table import symbol_table
from sandbox.threads import tasks
from sandbox.x86_64.tsc import ticks_per_ns

if TYPE_CHECKING:
    from fprobe.probe import fprobe
    from fprobe.report.counts import FunctionStat

_CALL = struct.Struct("<QQQQ")
_CELL, _TIMED_CELL = native.Cell.ctypes, native.TimedCell.ctypes


class Action(Summary, ProcessBound):
    """A built-in pair of handlers. `entry` or `exit` is None if it has nothing to do."""

    entry_data_size = 0

    def __init__(self) -> None:
        self.entry: BoundHandler | None = None
        self.exit: BoundHandler | None = None

    def belong_to(self, fp: fprobe) -> None:
        """Called before `prepare`, with the fprobe that uses the action.

        Raises OSError(EBUSY) if the action can serve only one fprobe at a time and serves another.
        """

    def prepare(self, functions: int) -> None:
        """Called before registration with the number of functions."""

    @property
    def state(self) -> int:
        """Address of the native ActionState, or 0."""
        return 0

    def _summary_rows(self) -> list[Row]:
        return []


def _handler(name: str, keep: Any = None) -> BoundHandler:
    return BoundHandler(runtime().image.address(name), plain=True, registers=Fields(), keep=keep)


class Count(Action):
    """Count hits."""

    def prepare(self, functions: int) -> None:
        self.entry = _handler("count_entry")


class CallRecord(NamedTuple):
    """One call. `entered` and `left` are nanoseconds of the clock `local`, which is CLOCK_MONOTONIC."""

    entered: int
    left: int
    ip: int
    caller: int
    thread: int


class _Exclusive(Action):
    """An action that serves one fprobe at a time. Its memory is allocated at each registration; its probe keeps it alive."""

    entry_data_size = 8

    def __init__(self) -> None:
        super().__init__()
        self._owner: fprobe | None = None

    def belong_to(self, fp: fprobe) -> None:
        with tracer().table.lock:
            if self._owner is not fp:
                self._refuse_if_in_use()
            self._owner = fp

    def _refuse_if_in_use(self) -> None:
        owner = self._owner
        if owner is not None and (owner.registered or owner.is_claimed):
            raise OSError(errno.EBUSY, f"this {type(self).__name__} is in use; detach it, or make another one")

    def close(self) -> None:
        """Free the memory. Raises OSError(EBUSY) while the action is in use."""
        with tracer().table.lock:
            self._refuse_if_in_use()
            self.entry = self.exit = None
            self._forget()

    @abstractmethod
    def _forget(self) -> None:
        """Drop the references to the memory."""


class _Calls:
    """A ring buffer for calls; closed when no probe, action or reader refers to it any more."""

    def __init__(self, capacity: int) -> None:
        self.buffer = Buffer("record", size_kb=-(-capacity * int(event_size(RECORD_SIZE) or 0) // 1024))
        weakref.finalize(self, self.buffer.close).atexit = False


_MOST_CALLS = 1 << 31
"""Records for each thread. No pool of pages is large enough for more."""


class Record(_Exclusive):
    """Record each call that returns while tracing is on: entry and return time, function, caller.

    `capacity`: records for each thread, a power of two, rounded up to whole sub-buffers. New records overwrite the oldest.
    """

    def __init__(self, capacity: int = 1 << 15) -> None:
        super().__init__()
        capacity = whole("capacity", capacity)
        if not 0 < capacity <= _MOST_CALLS or capacity & capacity - 1:
            raise ValueError(f"capacity is {capacity}; it must be a power of two, at most {_MOST_CALLS}")
        self.capacity = capacity
        self._calls: _Calls | None = None

    def prepare(self, functions: int) -> None:
        self._calls = _Calls(self.capacity)
        self.entry, self.exit = (_handler(name, self._calls) for name in ("record_entry", "record_exit"))

    @property
    def state(self) -> int:
        return self._calls.buffer.address if self._calls is not None else 0

    @property
    def written(self) -> int:
        """Number of records written, including overwritten ones."""
        return self._calls.buffer.written() if self._calls is not None else 0

    @property
    def lost(self) -> int:
        """Number of records that newer ones have overwritten."""
        return self._calls.buffer.overrun() if self._calls is not None else 0

    def records(self) -> Iterator[CallRecord]:
        """The records that have not been overwritten, in the order of the returns. They are not consumed."""
        calls = self._calls  # keeps the buffer
        for record in calls.buffer.records() if calls is not None else ():
            _, entered, ip, caller = _CALL.unpack_from(record.data)
            yield CallRecord(entered, record.stamp, ip, caller, record.common.pid)

    def _summary_rows(self) -> list[Row]:
        return [("written", self.written), ("lost", self.lost), ("capacity", self.capacity)]

    def _forget(self) -> None:
        self._calls = None


class _Cells:
    """A table of cells for each task; freed when no probe, action or reader refers to it any more."""

    def __init__(self, bits: int, size: int) -> None:
        stride = ((size << bits) + mappings.PAGE - 1) & -mappings.PAGE
        area = stride * tasks.CAPACITY
        self.native: Any = native.ActionState.ctypes(mask=(1 << bits) - 1, shift=64 - bits, cell_size=size)
        self.native.base, self.native.stride = mappings.reserve(area), stride
        weakref.finalize(self, mappings.release, self.native.base, area).atexit = False

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """The used cells of all tasks, each with its address."""
        size = self.native.cell_size
        for index in range(len(runtime().tasks())):
            base = self.native.base + index * self.native.stride
            for place in range(base, base + (self.native.mask + 1) * size, size):
                cell = _CELL.from_address(place)
                if cell.ip:
                    yield cell, place


class Stat(_Exclusive):
    """Count and time the calls of each function.

    `durations`: also count calls by duration, for histograms and percentiles.
    """

    def __init__(self, *, durations: bool = False) -> None:
        super().__init__()
        self._durations = durations
        self._cells: _Cells | None = None

    def prepare(self, functions: int) -> None:
        size = TIMED_CELL_SIZE if self._durations else CELL_SIZE
        self._cells = _Cells(max(4, (2 * functions - 1).bit_length()), size)
        leave = "stat_hist_exit" if self._durations else "stat_exit"
        self.entry, self.exit = (_handler(name, self._cells) for name in ("stat_entry", leave))

    @property
    def state(self) -> int:
        return ctypes.addressof(self._cells.native) if self._cells is not None else 0

    def functions(self) -> dict[int, FunctionStat]:
        """Entry address -> statistics over all threads. Functions without a hit are omitted."""
        from fprobe.report.buckets import BUCKETS
        from fprobe.report.counts import Calls, FunctionStat

        found: dict[int, Calls] = {}
        for cell, place in self._cells or ():
            buckets = _TIMED_CELL.from_address(place).durations[:BUCKETS] if self._durations else ()
            least = cell.shortest - 1 if cell.shortest else 0
            counted = Calls(cell.ip, 0, cell.hits, cell.missed, cell.returned, cell.ticks, least, cell.longest, buckets)
            found.setdefault(cell.ip, Calls(cell.ip)).add(counted)
        rate = ticks_per_ns()
        return {ip: FunctionStat(calls, rate) for ip, calls in found.items()}

    def _summary_rows(self) -> list[Row]:
        found = self.functions().values()
        return [("functions", len(found)), ("hits", sum(stat.hits for stat in found))]

    def _repr_html_(self) -> str:
        stats = sorted(self.functions().values(), key=lambda stat: stat.total_ns, reverse=True)
        rows = [
            (
                symbol_table.describe(stat.ip),
                stat.hits,
                stat.missed,
                *(f"{time:,.0f}" for time in (stat.total_ns, stat.min_ns, stat.max_ns)),
            )
            for stat in stats
        ]
        return table([("function", "hits", "missed", "total ns", "min ns", "max ns"), *rows], "Stat")

    def _forget(self) -> None:
        self._cells = None
