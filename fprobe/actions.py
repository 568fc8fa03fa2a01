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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ftrace.core.call_cells import CallCells
from ftrace.core.handlers.kinds import BoundHandler
from ftrace.core.runtime import runtime
from ftrace.core.summary import Row, Summary, table
from ftrace.core.tracer import tracer
from ftrace.hit.account import BY_CALLER, BY_NOTHING, BY_THREAD, CELL, CPU, SELF, TIMED_CELL, WALL, Account
from ftrace.hit.actions import RECORD_SIZE
from ftrace.hit.call_table import CALL_SIZES, HANDLERS, CallTable
from ftrace.ring_buffer.buffer import Buffer
from sandbox.native.handler import Fields
from sandbox.process.fork import ProcessBound
from sandbox.process.integers import whole
from sandbox.symbols.table import symbol_table
from sandbox.x86_64.tsc import ticks_per_ns

if TYPE_CHECKING:
    from fprobe.probe import fprobe
    from fprobe.report.counts import Calls, FunctionStat

_CALL = struct.Struct("<QQQQ")
_BY = {"function": BY_NOTHING, "caller": BY_CALLER, "thread": BY_THREAD}


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
        self.buffer = Buffer(
            "record", size_kb=-(-capacity * (4 + RECORD_SIZE) // 1024)
        )  # an event has a header of 4 bytes
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


class Stat(_Exclusive):
    """Count and time the calls of each function.

    `durations`: also count calls by duration, for histograms and percentiles. `by`: `function`, or `caller` or `thread`, to
    distinguish calls by that, too. `self_time`: also time without that of calls inside which this action counts. `cpu`: also
    the thread's CPU time, by two system calls for each call. All but the first imply `durations`, and `cpu` implies `self_time`.
    """

    def __init__(
        self, *, durations: bool = False, by: str = "function", self_time: bool = False, cpu: bool = False
    ) -> None:
        super().__init__()
        if by not in _BY:
            raise ValueError(f"by is {by!r}; it must be one of {', '.join(_BY)}")
        self._by, self._durations = _BY[by], durations
        self._measures = CPU if cpu else SELF if self_time else WALL
        self.entry_data_size = CALL_SIZES[self._measures]
        self._cells: CallCells | None = None
        self._table: Any = None

    def prepare(self, functions: int) -> None:
        needs_table = self._by != BY_NOTHING or self._measures != WALL
        is_timed = self._durations or needs_table
        cells = self._cells = CallCells(functions, TIMED_CELL if is_timed else CELL, self._by, self._measures)
        self._table = CallTable.ctypes(account=Account.ctypes(**cells.account))
        kind = HANDLERS[self._measures] if needs_table else "stat_hist" if is_timed else "stat"
        keep = (cells, self._table)
        self.entry, self.exit = (_handler(f"{kind}_{end}", keep) for end in ("entry", "exit"))

    @property
    def state(self) -> int:
        return ctypes.addressof(self._table) if self._table is not None else 0

    def functions(self) -> dict[int, FunctionStat]:
        """Entry address -> statistics over all threads. Functions without a hit are omitted."""
        return {stat.ip: stat for stat in self._stats(lambda calls: (calls.ip, 0))}

    def origins(self) -> list[FunctionStat]:
        """The statistics of each function and caller or thread, `FunctionStat.by`."""
        return self._stats(lambda calls: (calls.ip, calls.by))

    def _stats(self, key: Callable[[Calls], tuple[int, int]]) -> list[FunctionStat]:
        from fprobe.report.counts import Calls, FunctionStat, calls_of

        found: dict[tuple[int, int], Calls] = {}
        for calls in map(calls_of, self._cells or ()):
            found.setdefault(place := key(calls), Calls(*place)).add(calls)
        rate = ticks_per_ns()
        return [FunctionStat(calls, rate) for calls in found.values()]

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
        self._cells = self._table = None
