"""Samples, results, and the round-robin that takes them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field


class CountError(RuntimeError):
    """Hits and misses do not add up to the calls that were made."""


@dataclass(frozen=True)
class Sample:
    """One measurement: `baseline_ns` and `probed_ns` are nanoseconds per call, the rest are counts.

    `lost`: records that were overwritten before anybody could read them. `extra`: further figures of the row.
    """

    baseline_ns: float
    probed_ns: float
    calls: int
    hits: int
    missed: int = 0
    lost: int = 0
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def added_ns(self) -> float:
        """What the probe adds to a call."""
        return self.probed_ns - self.baseline_ns


@dataclass(frozen=True)
class Row:
    """Something that is measured. `sample` takes one sample; `rounds`: how many at most.

    `absent` says why it cannot be measured here; '' if it can.
    """

    name: str
    about: str
    sample: Callable[[], Sample]
    rounds: int = 1000
    absent: Callable[[], str] = str


@dataclass(frozen=True)
class Result:
    """The samples of a row together. Times are nanoseconds per call: medians, and the least and most added."""

    name: str
    added_ns: float
    baseline_ns: float
    min_ns: float
    max_ns: float
    hits: int
    missed: int
    lost: int
    extra: Mapping[str, float]

    def fields(self) -> dict[str, str | int | float]:
        """For JSON: the fields of every row, then those of this one."""
        common = asdict(self)
        extra = common.pop("extra")
        return {key: _rounded(value) for key, value in {**common, **extra}.items()}


def _rounded(value: str | int | float) -> str | int | float:
    return round(value, 3) if isinstance(value, float) else value


def measure(rows: Sequence[Row], rounds: int) -> dict[str, list[Sample]]:
    """Take `rounds` samples of each row, one row after the other in each round.

    Raises CountError for a row whose hits and misses are not the calls that were made.
    """
    samples: dict[str, list[Sample]] = {row.name: [] for row in rows}
    for number in range(rounds):
        for row in rows:
            if number < row.rounds:
                samples[row.name].append(_checked(row.name, row.sample()))
    return samples


def _checked(name: str, sample: Sample) -> Sample:
    if sample.hits + sample.missed != sample.calls:
        raise CountError(f"{name}: {sample.hits} hits and {sample.missed} misses in {sample.calls} calls")
    return sample


def summarise(name: str, samples: Sequence[Sample]) -> Result:
    """The result of a row from its samples, of which there is at least one."""
    added = [sample.added_ns for sample in samples]
    return Result(
        name,
        added_ns=statistics.median(added),
        baseline_ns=statistics.median(sample.baseline_ns for sample in samples),
        min_ns=min(added),
        max_ns=max(added),
        hits=sum(sample.hits for sample in samples),
        missed=sum(sample.missed for sample in samples),
        lost=sum(sample.lost for sample in samples),
        extra=_medians(sample.extra for sample in samples),
    )


def _medians(extras: Iterable[Mapping[str, float]]) -> dict[str, float]:
    gathered: dict[str, list[float]] = {}
    for extra in extras:
        for key, value in extra.items():
            gathered.setdefault(key, []).append(value)
    return {key: statistics.median(values) for key, values in gathered.items()}
