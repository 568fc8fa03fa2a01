"""The function profiler: hit counts and times of functions. function_profile_enabled and trace_stat/.

ftrace.tracing.output.profile shows the counts.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from ftrace.core.call_cells import CallCells
from ftrace.core.sites.locations import FILTER, global_hash
from ftrace.core.tracer import tracer
from ftrace.hit.account import Account
from ftrace.hit.tracers.profile_hit import PROFILE, ProfileCall, ProfileState
from ftrace.ring_buffer import clock
from ftrace.tracing.tracers.available import function_graph
from ftrace.tracing.tracers.probing import FunctionProbing
from sandbox.process import fork

_SPARE_CELLS = 1024
"""Spare cells, for functions of modules that are loaded while the profiler is enabled."""


class FunctionProfile(NamedTuple):
    """The calls of one function in one thread. Times are in nanoseconds, of the calls that `returned`."""

    ip: int
    hits: int
    returned: int
    time: int
    time_squared: int


class _Tables:
    """The tables of one run of the profiler."""

    def __init__(self, functions: int) -> None:
        self._clock = clock.start(clock.find("local"))
        self._cells = CallCells(functions + _SPARE_CELLS // 2, PROFILE)
        account = Account.ctypes(**self._cells.account)
        self.native: Any = ProfileState.ctypes(account=account, clock=ctypes.addressof(self._clock))

    def follow_options(self) -> None:
        """Follow the options of function_graph, which apply to the profiler too."""
        self.native.no_graph_time = int(not function_graph.flags["graph-time"])
        self.native.no_sleep_time = int(not function_graph.flags["sleep-time"])

    def profiles(self, slot: int) -> Iterator[FunctionProfile]:
        """The profiles of one slot's thread."""
        return (
            FunctionProfile(ip, hits, returns, time, squared)
            for ip, _, hits, _, returns, time, _, _, squared in self._cells.of_slot(slot)
            if hits
        )


class FunctionProfiler:
    """The profiler. Its counts can be read until it is enabled again."""

    def __init__(self) -> None:
        self._lock = fork.renew(threading.RLock())
        self._tables: _Tables | None = None
        self._probing: FunctionProbing | None = None

    @property
    def enabled(self) -> bool:
        """Whether the profiler is enabled."""
        return self._probing is not None

    def enable(self) -> None:
        """Start counting from 0. Does nothing if enabled. Raises OSError."""
        with tracer().reclaimer.deferred(), self._lock:
            if self._probing is not None:
                return
            tables = _Tables((tracer().table.everything() | getattr(global_hash, FILTER)).count())
            tables.follow_options()
            self._tables = tables
            self._probing = FunctionProbing(
                global_hash,
                tables.native,
                entry="profile_graph_entry",
                exit="profile_graph_return",
                detach=self.disable,
                keep=tables,
                data_size=ProfileCall.size,
            )

    def disable(self) -> None:
        """Stop counting."""
        with tracer().reclaimer.deferred(), self._lock:
            probing, self._probing = self._probing, None
            if probing is not None:
                probing.stop()

    def follow_options(self) -> None:
        """Apply a change of sleep-time or graph-time."""
        with self._lock:
            if self._tables is not None:
                self._tables.follow_options()

    def profiles(self, slot: int) -> list[FunctionProfile]:
        """The profiles of one slot's thread, by descending time."""
        with self._lock:
            found = [] if self._tables is None else list(self._tables.profiles(slot))
        return sorted(found, key=lambda profile: profile.time, reverse=True)


function_profiler = FunctionProfiler()
"""The profiler of the process."""
