"""Counts and times of calls: in ticks of the time-stamp counter as they are counted, in nanoseconds as they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fprobe.report.buckets import limits, percentile

_PLAIN, _TIMED = 8, 16
"""Words of a cell, and of one with buckets before these."""
WALL, SELF, CPU = 0, 1, 2
"""What is measured of each call, as in `ftrace.hit.account`."""


@dataclass
class Calls:
    """The calls of one function, or of one function by one caller or thread. Times are in ticks, `cpu` in nanoseconds.

    `returns`: the number of timed calls; `buckets`: of these, by duration; empty if that is not counted. `measures`: SELF, or
    CPU for both, or 0.
    """

    ip: int
    by: int = 0
    hits: int = 0
    missed: int = 0
    returns: int = 0
    total: int = 0
    least: int = 0
    most: int = 0
    buckets: Sequence[int] = ()
    measures: int = 0
    self_total: int = 0
    cpu: int = 0

    def add(self, other: Calls) -> None:
        """Add the calls that another thread or process has counted."""
        if other.returns:
            self.least = min(self.least, other.least) if self.returns else other.least
        self.most = max(self.most, other.most)
        self.hits += other.hits
        self.missed += other.missed
        self.returns += other.returns
        self.total += other.total
        self.measures = max(self.measures, other.measures)
        self.self_total += other.self_total
        self.cpu += other.cpu
        if self.buckets and other.buckets:
            self.buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        else:
            self.buckets = self.buckets or other.buckets

    @property
    def average(self) -> float:
        """Average ticks of the calls that have returned; 0 if none has."""
        return self.total / self.returns if self.returns else 0.0

    def percentile(self, share: float) -> float:
        """The ticks that `share` percent of the calls did not exceed, to an eighth (fprobe.report.buckets)."""
        return percentile(self.buckets, share, self.least, self.most)


def calls_of(words: Sequence[int]) -> Calls:
    """A cell of an account (ftrace.hit.account), with or without buckets."""
    ip, by, hits, missed, returns, total, least, most = words[:_PLAIN]
    measures, self_total, cpu = words[_PLAIN : _PLAIN + 3] or (0, 0, 0)
    return Calls(ip, by, hits, missed, returns, total, least, most, words[_TIMED:], measures, self_total, cpu)


class FunctionStat:
    """The statistics of one function. Times are those of the timed calls, from entry to return, in nanoseconds.

    `returned`: the number of timed calls. A call that an exception or longjmp() ends is a hit, but is not timed.
    `by`: the caller or the thread, if calls are counted by that; else 0. `self_ns`: the total without the calls inside that are
    counted, too, and have returned; `cpu_ns`: the thread's CPU time in the calls; 0 unless they are measured.
    """

    def __init__(self, calls: Calls, rate: float) -> None:
        self._calls, self._rate = calls, rate
        self.ip, self.by = calls.ip, calls.by
        self.hits, self.missed, self.returned = calls.hits, calls.missed, calls.returns
        self.total_ns, self.average_ns = calls.total / rate, calls.average / rate
        self.min_ns, self.max_ns = calls.least / rate, calls.most / rate
        self.self_ns, self.cpu_ns = calls.self_total / rate, float(calls.cpu)

    def __repr__(self) -> str:
        return f"FunctionStat({', '.join(f'{name}={value!r}' for name, value in self._fields().items())})"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, FunctionStat) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of other records with fields that can be set

    def _fields(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @property
    def has_self(self) -> bool:
        """Whether `self_ns` is measured."""
        return self._calls.measures >= SELF

    @property
    def has_cpu(self) -> bool:
        """Whether `cpu_ns` is measured."""
        return self._calls.measures >= CPU

    @property
    def has_durations(self) -> bool:
        """Whether calls are counted by duration."""
        return bool(self._calls.buckets)

    @property
    def buckets(self) -> Sequence[int]:
        """The calls by duration, as fprobe.report.buckets says; empty without durations."""
        return self._calls.buckets

    @property
    def rate(self) -> float:
        """Ticks per nanosecond."""
        return self._rate

    @property
    def durations(self) -> dict[float, int]:
        """The number of calls in each bucket that has any, by its shortest duration in nanoseconds."""
        return {limits(number)[0] / self._rate: calls for number, calls in enumerate(self._calls.buckets) if calls}

    def percentile(self, share: float) -> float:
        """The shortest duration that at least `share` percent of the calls did not exceed, in nanoseconds.

        It is at most an eighth too short or too long; 0 if durations are not counted. Raises ValueError unless `share` is
        between 0 and 100.
        """
        return self._calls.percentile(share) / self._rate
