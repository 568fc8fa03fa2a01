"""Counts of durations in buckets, as `ftrace.hit.account.bucket_of` fills them: their limits, percentiles and bars.

A value below 4 has a bucket of its own; above, each power of two has four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fprobe.report.durations import duration
from sandbox.process.bars import barred

BUCKETS = 240
PERCENTILES = (50, 90, 99)
"""The percentiles of a report."""


class Bucket(NamedTuple):
    """The number of durations in [low, high)."""

    low: int
    high: int
    calls: int


def limits(bucket: int) -> tuple[int, int]:
    """The first value of a bucket, and the first one after it."""
    if bucket < 4:
        return bucket, bucket + 1
    bits, quarter = divmod(bucket, 4)
    return (4 + quarter) << (bits - 1), (5 + quarter) << (bits - 1)


def percentile(counts: Sequence[int], share: float, least: int, most: int) -> float:
    """The shortest duration that at least `share` percent of the calls do not exceed, to an eighth; 0 without calls.

    It is the middle of its bucket, or the shortest or the longest duration if that is nearer. Raises ValueError unless `share`
    is between 0 and 100.
    """
    if not 0 <= share <= 100:
        raise ValueError(f"share is {share}; it must be between 0 and 100")
    wanted, seen = sum(counts) * share / 100, 0
    for bucket, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            low, end = limits(bucket)
            return min(max((low + end - 1) / 2, least), most)
    return 0.0


def powers(counts: Sequence[int]) -> list[Bucket]:
    """The durations by power of two, from the first to the last one that is not empty."""
    totals = [sum(counts[first : first + 4]) for first in range(0, len(counts), 4)]
    filled = [index for index, total in enumerate(totals) if total]
    return [
        Bucket(limits(4 * index)[0], limits(4 * index + 3)[1], totals[index])
        for index in (range(filled[0], filled[-1] + 1) if filled else ())
    ]


def bars(counts: Sequence[int], rate: float, width: int | None = None) -> Iterator[str]:
    """The lines of a histogram, one for each power of two. `rate`: ticks per nanosecond; `width`: columns of the terminal."""
    rows = powers(counts)
    most = max((count for _, _, count in rows), default=1)
    for low, high, count in rows:
        yield barred(f"{duration(low / rate):>12} .. {duration(high / rate):<12} {count:>10,}", count, most, width)
