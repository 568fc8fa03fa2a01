"""Durations of a run: measured in ticks, shown as text, histograms and graphs."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fprobe.run.launcher.results import limits

_BAR = 40


def duration(nanoseconds: float, digits: int = 3) -> str:
    """A duration with its unit and `digits` digits after the point; below 1 us, whole nanoseconds."""
    if nanoseconds < 999.5:
        return f"{nanoseconds:.0f} ns"
    for unit in ("us", "ms"):
        nanoseconds /= 1000
        if round(nanoseconds, digits) < 1000:
            return f"{nanoseconds:.{digits}f} {unit}"
    return f"{nanoseconds / 1000:.{digits}f} s"


def powers(buckets: Sequence[int]) -> list[tuple[int, int, int]]:
    """Low, high and count for each power of two of ticks, from the first to the last that is not empty."""
    groups = [range(4), *(range(first, first + 4) for first in range(4, len(buckets), 4))]
    rows = [(limits(group[0])[0], limits(group[-1])[1], sum(buckets[number] for number in group)) for group in groups]
    filled = [index for index, row in enumerate(rows) if row[2]]
    return rows[filled[0] : filled[-1] + 1] if filled else []


def bars(buckets: Sequence[int], rate: float) -> Iterator[str]:
    """The lines of a histogram, one for each power of two. `rate`: ticks per nanosecond."""
    rows = powers(buckets)
    most = max((count for _, _, count in rows), default=1)
    for low, high, count in rows:
        bar = "#" * -(-count * _BAR // most)
        yield f"{duration(low / rate):>12} .. {duration(high / rate):<12} {count:>10,} |{bar:<{_BAR}}|"


def levels(values: Iterable[float]) -> str:
    """One bar character for each value, its height relative to the largest; a space for 0."""
    known = list(values)
    most = max(known, default=0)
    return "".join(_LEVELS[round(value / most * (len(_LEVELS) - 1))] if value else " " for value in known)


_LEVELS = "▁▂▃▄▅▆▇█"


_READ_TSC = bytes.fromhex("0f3148c1e2204809d0c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret"""
_LEAST = 5_000_000
"""Minimum of nanoseconds between the readings."""
_SAMPLES = 16


class Reading(NamedTuple):
    """The time-stamp counter, and CLOCK_MONOTONIC at the same moment."""

    ticks: int
    nanoseconds: int


class Ticks:
    """A measurement that starts when the object is created."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(_READ_TSC)
        self._read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(self._code)))
        self.first = self._sample()

    @property
    def now(self) -> int:
        """The time-stamp counter."""
        return int(self._read())

    def _sample(self) -> Reading:
        tries = []
        for _ in range(_SAMPLES):
            before, now, after = self._read(), time.clock_gettime_ns(time.CLOCK_MONOTONIC), self._read()
            tries.append((after - before, Reading((before + after) // 2, now)))
        return min(tries)[1]

    def per_nanosecond(self) -> float:
        """Ticks per nanosecond. Waits until the measurement has taken 5 ms."""
        while (now := self._sample()).nanoseconds - self.first.nanoseconds < _LEAST:
            time.sleep(0.001)
        return (now.ticks - self.first.ticks) / (now.nanoseconds - self.first.nanoseconds)
