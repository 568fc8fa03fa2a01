"""Measures the rate of the time-stamp counter while the program runs."""

from __future__ import annotations

import ctypes
import mmap
import time
from typing import NamedTuple

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
