"""The native state of probe events: hit counters and scratch memory of all tasks, and each probe's EventState."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from ftrace.core.runtime import runtime
from ftrace.hit.events.event_state import MAX_TARGETS, SCRATCH, EventState
from ftrace.tracing.events.hit.shortcuts import Shortcut
from sandbox.memory import mappings
from sandbox.process import fork
from sandbox.process.once import once
from sandbox.threads import tasks

MAX_PROBES = 1 << 15


class EventMemory:
    """Memory of all probe events: each task's hit counters and scratch memory. Pages are charged when they are touched."""

    def __init__(self) -> None:
        self.scratch = mappings.reserve(SCRATCH * tasks.CAPACITY)
        self.stride = MAX_PROBES * 8
        self.hits = mappings.reserve(self.stride * tasks.CAPACITY)
        self._lock = fork.renew(threading.Lock())
        self._free: list[int] = []
        self._next = 0

    def claim(self) -> int:
        """Take a row of hit counters, all zero. Raises MemoryError if there are too many probes of events."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._next == MAX_PROBES:
                raise MemoryError(f"events already have {MAX_PROBES} probes, the maximum; delete some")
            self._next += 1
            return self._next - 1

    def release(self, row: int) -> None:
        """Give back a row that no handler uses any more."""
        for counter in self._counters(row):
            counter.value = 0
        with self._lock:
            self._free.append(row)

    def count(self, row: int) -> int:
        """The sum of a row's counters over all tasks."""
        return sum(counter.value for counter in self._counters(row))

    def _counters(self, row: int) -> list[Any]:
        used = int(runtime().image.variable("tasks_claimed_high").value)
        return [ctypes.c_uint64.from_address(self.hits + index * self.stride + row * 8) for index in range(used)]


@once
def event_memory() -> EventMemory:
    """The memory of this process's probe events."""
    return EventMemory()


def aim(state: Any, type_id: int, targets: Sequence[int]) -> None:
    """Have an EventState record events of this id into the Targets at these addresses. Raises ValueError: too many."""
    if len(targets) > MAX_TARGETS:
        raise ValueError(f"the event is enabled in {len(targets)} trace arrays; the maximum is {MAX_TARGETS}")
    count, known = state.count, list(targets)
    if list(state.targets[:count]) != known[:count]:
        state.count = 0
    state.type_id = type_id
    for index, target in enumerate(known):
        state.targets[index] = target
    state.count = len(known)


class Recording:
    """One probe's EventState; its address does not change while the probe exists."""

    def __init__(self) -> None:
        self._memory = event_memory()
        self._row: int | None = self._memory.claim()
        self.native: Any = EventState.ctypes()
        self.native.hits = self._memory.hits + (self._row or 0) * 8
        self.native.hits_stride = self._memory.stride
        self.native.scratch = self._memory.scratch
        self._shortcut: Shortcut | None = None

    def resolve(self, constants: Sequence[int]) -> None:
        """Set the addresses of the symbols in arguments, in order."""
        for index, value in enumerate(constants):
            self.native.constants[index] = value

    @property
    def address(self) -> int:
        """The address of the EventState: the `action` of the handlers' probe."""
        return ctypes.addressof(self.native)

    @property
    def hits(self) -> int:
        """The number of times that the handler has run."""
        return self._memory.count(self._row) if self._row is not None else 0

    def record_to(self, type_id: int, targets: Sequence[int]) -> None:
        """Record events of this id into the Targets at these addresses from now on."""
        aim(self.native, type_id, targets)

    def use_shortcut(self, shortcut: Shortcut | None) -> Shortcut | None:
        """Set the shortcut. Returns the previous one, which hits in progress may still be executing."""
        before, self._shortcut = self._shortcut, shortcut
        self.native.shortcut, self.native.early = shortcut.addresses if shortcut is not None else (0, 0)
        return before

    def close(self) -> None:
        """Free the state of a probe that is unregistered and has no hit in progress. Closing again does nothing."""
        row, self._row = self._row, None
        if row is not None:
            self._memory.release(row)
