"""The time-stamp counter: reading it together with a clock, and its rate."""

from __future__ import annotations

import ctypes
import mmap
import time
from functools import cache
from typing import Any, NamedTuple

_READ = bytes.fromhex("0f3148c1e2204809d0c3")
"""rdtsc; shl rdx, 32; or rax, rdx; ret"""
_LEAST = 5_000_000
"""Minimum of nanoseconds between the readings that a rate is computed from."""
_SAMPLES = 64


class Reading(NamedTuple):
    """The time-stamp counter, and a clock at the same moment."""

    ticks: int
    nanoseconds: int


@cache
def _reader() -> tuple[Any, mmap.mmap]:
    code = mmap.mmap(-1, mmap.PAGESIZE)
    code.write(_READ)
    address, libc = ctypes.addressof(ctypes.c_char.from_buffer(code)), ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "no memory can be made executable, to read the time-stamp counter")
    return ctypes.CFUNCTYPE(ctypes.c_uint64)(address), code


def sample(clock: int = time.CLOCK_MONOTONIC) -> Reading:
    """Read the counter and a clock of clock_gettime() together. Returns the closest of several readings."""
    read, _ = _reader()
    tries = []
    for _ in range(_SAMPLES):
        before, now, after = read(), time.clock_gettime_ns(clock), read()
        tries.append((after - before, Reading((before + after) // 2, now)))
    return min(tries)[1]


class Ticks:
    """A measurement that starts when the object is created."""

    def __init__(self) -> None:
        self.first = sample()

    @property
    def now(self) -> int:
        """The time-stamp counter."""
        return int(_reader()[0]())

    def per_nanosecond(self) -> float:
        """Ticks per nanosecond. Waits until the measurement has taken 5 ms."""
        while (now := sample()).nanoseconds - self.first.nanoseconds < _LEAST:
            time.sleep(0.001)
        return (now.ticks - self.first.ticks) / (now.nanoseconds - self.first.nanoseconds)


@cache
def ticks_per_ns() -> float:
    """The rate of the counter, measured once over 5 ms."""
    return Ticks().per_nanosecond()
