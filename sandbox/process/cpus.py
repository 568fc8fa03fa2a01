"""The number of CPUs that default pool sizes are computed from, as num_possible_cpus()."""

from __future__ import annotations

import os

_count = [len(os.sched_getaffinity(0))]


def num_possible_cpus() -> int:
    """The number of CPUs for default pool sizes."""
    return _count[0]


def set_num_possible_cpus(count: int) -> None:
    """Override `num_possible_cpus`, for tests that need fixed sizes."""
    _count[0] = count
