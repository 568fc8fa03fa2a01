"""trace_clock: the clocks for time stamps, and the initial fit of the time-stamp counter to them."""

from __future__ import annotations

import ctypes
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ftrace.hit.ring_buffer.clock_state import COUNTER, MAX_MULT, SCALED, SHIFT, SYSTEM, TSC, ClockState
from sandbox.memory.pages import is_denied
from sandbox.process.once import once_for_each
from sandbox.x86_64.tsc import sample

SECOND = 1_000_000_000
_USER_HZ = 100
_CALIBRATION = 0.005
_PR_GET_TSC, _PR_TSC_ENABLE = 25, 1


class Clock(NamedTuple):
    """A clock of trace_clock."""

    name: str
    system: int
    """The clock of clock_gettime that it follows."""
    kind: int = SCALED
    divisor: int = 1
    """Nanoseconds in a unit."""

    @property
    def in_ns(self) -> bool:
        """Whether its units are nanoseconds, and printed as seconds."""
        return self.kind in (SCALED, SYSTEM) and self.divisor == 1


CLOCKS = (
    Clock("local", time.CLOCK_MONOTONIC),
    Clock("global", time.CLOCK_MONOTONIC),
    Clock("counter", time.CLOCK_MONOTONIC, COUNTER),
    Clock("uptime", time.CLOCK_MONOTONIC, SYSTEM, SECOND // _USER_HZ),
    Clock("perf", time.CLOCK_MONOTONIC),
    Clock("mono", time.CLOCK_MONOTONIC),
    Clock("mono_raw", time.CLOCK_MONOTONIC_RAW),
    Clock("boot", time.CLOCK_BOOTTIME),
    Clock("tai", 11),
    Clock("x86-tsc", time.CLOCK_MONOTONIC, TSC),
)
"""In the order of the file trace_clock."""


def find(name: str) -> Clock:
    """The clock of that name. Raises ValueError naming the available clocks."""
    for clock in CLOCKS:
        if clock.name == name:
            return clock
    raise ValueError(f"the clock is {name!r}; it must be one of {', '.join(clock.name for clock in CLOCKS)}")


@cache
def tsc_is_usable() -> bool:
    """Whether the time-stamp counter has a constant rate on all cores, and this process may read it."""
    if is_denied("tsc"):
        return False
    allowed = ctypes.c_int()
    if ctypes.CDLL(None).prctl(_PR_GET_TSC, ctypes.byref(allowed), 0, 0, 0) == 0 and allowed.value != _PR_TSC_ENABLE:
        return False
    try:
        flags = next(
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")
        ).split()
        sources = Path("/sys/devices/system/clocksource/clocksource0/available_clocksource").read_text().split()
    except (OSError, StopIteration):
        return False
    return {"constant_tsc", "nonstop_tsc"} <= set(flags) and "tsc" in sources


@once_for_each
def start(clock: Clock) -> Any:
    """The native half of a clock: a ctypes structure of ClockState, shared by all buffers."""
    state = ClockState.ctypes()
    state.kind, state.clock_id, state.divisor = clock.kind, clock.system, clock.divisor
    if clock.kind in (SCALED, TSC) and not (tsc_is_usable() and _calibrate(state)):
        state.kind = SYSTEM
    return state


def _calibrate(state: Any) -> bool:
    """Begin the first segment. Returns False if the counter is slower than one tick per nanosecond."""
    first = sample(state.clock_id)
    time.sleep(_CALIBRATION)
    second = sample(state.clock_id)
    mult = ((second.nanoseconds - first.nanoseconds) << SHIFT) // (second.ticks - first.ticks)
    first_segment = state.segments[0]
    first_segment.base = second.nanoseconds - (second.ticks * mult >> SHIFT) & (1 << 64) - 1
    first_segment.factor = mult << SHIFT
    state.anchor_ticks, state.anchor_time = first.ticks, first.nanoseconds
    state.fitted, state.interval = second.ticks, (second.ticks - first.ticks) * 2
    return mult <= MAX_MULT
