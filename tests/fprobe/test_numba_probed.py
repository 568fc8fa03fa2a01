"""Fprobes on the code of Numba: every program gives its result, and hits are as many as calls."""

from __future__ import annotations

import pytest
from isolation import isolated

pytest.importorskip(
    "numba", reason="numba is not installed: `pip install fprobe[targets]`; it has no wheels for some Pythons"
)

TIME = 60


def _names(test):
    """What stands before the names of functions that are defined in `test`."""
    return f"numba:{__name__}.{test.__name__}.<locals>"


@isolated(timeout=TIME)
def test_entry_and_exit_of_every_call_are_seen_and_results_are_as_they_were():
    import numpy as np
    from numba import njit

    import fprobe

    @njit
    def total(a):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i]
        return s

    @njit
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    doubles, floats = np.ones(5), np.ones(7, np.float32)
    assert (total(doubles), total(floats), fact(5)) == (5, 7, 120)
    prefix = _names(test_entry_and_exit_of_every_call_are_seen_and_results_are_as_they_were)
    returned = []
    with (
        fprobe.attach(f"{prefix}.total", entry=lambda *_: 0, exit=lambda *_: returned.append(1)) as calls,
        fprobe.attach(f"{prefix}.*", action=fprobe.Stat()) as stat,
    ):
        assert (total(doubles), total(floats), fact(5)) == (5, 7, 120)
    assert (calls.counts.hits, calls.counts.missed, len(returned)) == (2, 0, 2)
    assert sorted(one.hits for one in stat.action.functions().values()) == [1, 1, 5]


@isolated(timeout=TIME)
def test_what_is_compiled_after_attaching_is_probed_from_its_first_call():
    from numba import float64, njit
    from numba.experimental import jitclass

    import fprobe
    import kprobes

    @njit
    def later(x):
        return x * 2 + 1

    @jitclass([("value", float64)])
    class Cell:
        def __init__(self, value):
            self.value = value

        def add(self, x):
            self.value += x
            return self.value

    prefix = _names(test_what_is_compiled_after_attaching_is_probed_from_its_first_call)
    with (
        fprobe.attach(f"{prefix}.later", action=fprobe.Count()) as entered,
        kprobes.attach(f"{prefix}.later", action=kprobes.Count()) as met,
        fprobe.attach(f"{prefix}.Cell.add", action=fprobe.Count()) as added,
    ):
        assert (entered.hits, met.hits, added.hits) == (0, 0, 0)
        assert (later(1), later(2), later(0.5)) == (3, 5, 2.0)
        cell = Cell(1.0)
        assert (cell.add(2.0), cell.add(3.0)) == (3.0, 6.0)
    assert (entered.hits, met.hits, added.hits) == (3, 3, 2)
    later(1j)
    assert (entered.hits, met.hits) == (3, 3)


@isolated(timeout=TIME)
def test_a_name_that_numba_does_not_know_is_refused():
    from numba import njit

    import fprobe

    @njit
    def compiled(x):
        return x + 1

    compiled(1)
    prefix = _names(test_a_name_that_numba_does_not_know_is_refused)
    with pytest.raises(OSError, match=r"no function of \[numba\] matches .*; did you mean numba:.*\.compiled"):
        fprobe.attach(f"{prefix}.complied", action=fprobe.Count()).attach()
