"""Histogram: counts of values by magnitude, in buckets that are shown as bars."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ftrace.core.maps.areas import MAX_AREA, Map, MapState, area_of, at, spare
from ftrace.core.summary import table
from sandbox.native import *
from sandbox.native.containers import Operation
from sandbox.native.types import Int
from sandbox.process.bars import LONGEST, bar
from sandbox.process.integers import U64_MAX, between


@native
def count_in(state: ptr[MapState], row: u64, bucket: u64) -> void:
    area = area_of(state)
    index = row * state.width + bucket
    if unlikely(bucket >= state.width or index >= state.count):
        spare(state, area)
        return
    cell = cast(ptr[u64], at(area, state.first + index * 8))
    cell[0] += 1


@native
def add_power_to(state: ptr[MapState], row: u64, value: u64) -> void:
    """Bucket 0 counts the value 0, bucket n the values of n bits."""
    count_in(state, row, 64 - leading_zeros(value))


@native
def add_power(state: ptr[MapState], value: u64) -> void:
    count_in(state, 0, 64 - leading_zeros(value))


@native
def add_step_to(state: ptr[MapState], row: u64, value: u64) -> void:
    """Buckets of equal width. A value below the first bucket wraps to one above the last."""
    count_in(state, row, (value - state.low) // state.step)


@native
def add_step(state: ptr[MapState], value: u64) -> void:
    add_step_to(state, 0, value)


class Histogram(Map):
    """Counts of unsigned 64-bit values by magnitude; native functions write `latency.add(value)`.

    Bucket 0 counts the value 0, and bucket n those in [2^(n-1), 2^n). With a `step`, buckets are that wide and start at `low`.
    With several `rows` there is a histogram for each: `latency.add(row, value)`. Values outside of all buckets are counted in
    `dropped`. Raises ValueError for numbers out of range.
    """

    def __init__(self, buckets: int = 65, *, step: int = 0, low: int = 0, rows: int = 1) -> None:
        self.buckets, self.rows = _number("buckets", buckets, 1), _number("rows", rows, 1)
        self.step, self.low = _number("step", step, 0, U64_MAX), _number("low", low, 0, U64_MAX)
        if self.step == 0 and (self.buckets > 65 or self.low):
            raise ValueError(f"buckets is {buckets} and low is {low}; without a step, at most 65 and 0 are allowed")
        layout = {"width": self.buckets, "low": self.low, "step": self.step}
        super().__init__({"add": self._operation()}, self.buckets * self.rows, 8, is_shared=False, **layout)

    def _operation(self) -> Operation:
        word = Int(64, signed=False)
        if self.rows > 1:
            return Operation(add_step_to if self.step else add_power_to, (word, word))
        return Operation(add_step if self.step else add_power, (word,))

    def __repr__(self) -> str:
        return "\n".join([f"<Histogram {self.label}: {len(self):,} values>", *self.lines()])

    def _repr_html_(self) -> str:
        rows = [(f"{bucket.low} .. {bucket.high}", bucket.count) for _, bucket in self.items()]
        dropped = [("dropped", self.dropped)] if self.dropped else []
        return table([*rows, *dropped], f"Histogram {self.label}: {len(self):,} values")

    def __len__(self) -> int:
        return sum(bucket.count for row in range(self.rows) for bucket in self.row(row))

    def row(self, number: int = 0) -> list[Bucket]:
        """The buckets of a row, also the empty ones. Raises IndexError naming a row that is not there."""
        number = between("the row", number, 0, self.rows - 1, IndexError)
        counts = [0] * self.buckets
        for area in self._areas():
            start = area + self._state.first + number * self.buckets * 8
            cells = (ctypes.c_uint64 * self.buckets).from_address(start)
            counts = [sum(pair) for pair in zip(counts, cells, strict=True)]
        return [Bucket(*self.limits(index), count) for index, count in enumerate(counts)]

    def limits(self, bucket: int) -> tuple[int, int]:
        """The first value of a bucket, and the first value after it. Raises IndexError naming a bucket that is not there."""
        bucket = between("the bucket", bucket, 0, self.buckets - 1, IndexError)
        if self.step:
            return self.low + bucket * self.step, self.low + (bucket + 1) * self.step
        return (1 << bucket >> 1, 1 << bucket)

    def lines(self) -> Iterator[str]:
        """Its contents as text: a bar for each bucket, and the number of dropped values."""
        yield from bars({number: self.row(number) for number in range(self.rows)})
        if dropped := self.dropped_line():
            yield dropped

    def items(self) -> Iterator[tuple[int, Bucket]]:
        """Pairs of row and bucket, of all buckets that are not empty."""
        return ((row, bucket) for row in range(self.rows) for bucket in self.row(row) if bucket.count)

    def __iter__(self) -> Iterator[Bucket]:
        return (bucket for _, bucket in self.items())


def _number(name: str, value: int, low: int, high: int = MAX_AREA) -> int:
    return between(f"{name} of the Histogram", value, low, high)


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
    return f"  {bucket.low:>{width}} .. {bucket.high:<{width}} {bucket.count:>8} |{bar(bucket.count, most):<{LONGEST}}|"
