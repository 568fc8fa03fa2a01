"""The row of Numba: what a call of a compiled function costs that is probed at both ends."""

from __future__ import annotations

import time
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import fprobe.numba
from benchmarks.measure import Row, Sample
from benchmarks.probes import both_native


def increment(x: int) -> int:
    """What is called."""
    return x + 1


@cache
def _loop() -> Any:
    """A compiled function that calls another as often as it says."""
    fprobe.numba.install(noinline=True)
    from numba import njit

    compiled = njit(increment)

    def loop(calls: int) -> int:
        total = 0
        for _ in range(calls):
            total = compiled(total)
        return total

    made = njit(loop)
    made(1)
    return made


def _each(calls: int) -> float:
    """Nanoseconds for each of so many calls."""
    loop = _loop()
    began = time.perf_counter()
    loop(calls)
    return (time.perf_counter() - began) / calls * 1e9


def _both(calls: int) -> Sample:
    baseline = _each(calls)
    with both_native(f"numba:{__name__}.increment") as probe:
        probed = _each(calls)
        return Sample(baseline, probed, calls, probe.hits, probe.counts.missed)


def rows(calls: int) -> list[Row]:
    """Empty where Numba is not installed."""
    if find_spec("numba") is None:
        return []
    return [Row("numba.both.native", "a function of Numba, native handlers at both ends", partial(_both, calls))]
