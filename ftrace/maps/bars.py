"""Buckets of a histogram, and their text as bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

BAR = 40
"""The length of the longest bar in characters."""


@dataclass(frozen=True)
class Bucket:
    """The number of values in [low, high)."""

    low: int
    high: int
    count: int


def bars(rows: Mapping[int, Sequence[Bucket]]) -> Iterator[str]:
    """A line for each bucket, without empty buckets at either end; with a heading for each row if there are several."""
    width = max((len(str(bucket.high)) for buckets in rows.values() for bucket in buckets if bucket.count), default=0)
    for number, buckets in rows.items():
        shown = _trimmed(buckets)
        if shown and len(rows) > 1:
            yield f"  row {number}:"
        most = max((bucket.count for bucket in shown), default=0)
        yield from (_bar(bucket, width, most) for bucket in shown)


def _trimmed(buckets: Sequence[Bucket]) -> Sequence[Bucket]:
    used = [index for index, bucket in enumerate(buckets) if bucket.count]
    return buckets[used[0] : used[-1] + 1] if used else []


def _bar(bucket: Bucket, width: int, most: int) -> str:
    bar = "#" * -(-bucket.count * BAR // most)
    return f"  {bucket.low:>{width}} .. {bucket.high:<{width}} {bucket.count:>8} |{bar:<{BAR}}|"
