"""Long lists of cases: each run has a few of them, `make stress` has all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def sampled(cases: Iterable[Any], count: int) -> list[Any]:
    """The cases as parameters: `count` of them, from the first to the last at equal distances, and the others under `stress`.

    They are the same ones each time, since all workers have to collect the same tests.
    """
    every = list(cases)
    kept = {number * (len(every) - 1) // max(count - 1, 1) for number in range(count)}
    return [case if number in kept else in_stress(case) for number, case in enumerate(every)]


def in_stress(case: Any) -> Any:
    """A case that `make stress` has. A tuple is the values of several parameters, or a `pytest.param` with marks of its own."""
    if isinstance(case, ParameterSet):
        return case._replace(marks=[*case.marks, pytest.mark.stress])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.stress)
