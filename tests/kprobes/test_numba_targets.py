"""Kprobes and kretprobes on the code of Numba, by the names that users gave."""

from __future__ import annotations

import pytest
from isolation import NUMBA, isolated
from later import later

later("numba", "numba is not installed: `pip install fprobe[targets]`; it has no wheels for some Pythons")


def _nothing(probe, regs):
    """A handler."""


def _hits(target, *calls):
    """How often entry and return were seen of what `target` means, while `calls` were made."""
    import kprobes

    with (
        kprobes.attach(f"numba:{target}", pre=_nothing) as entered,
        kprobes.attach_return(f"numba:{target}", _nothing) as returned,
    ):
        for call in calls:
            call()
    assert entered.nmissed == returned.nmissed == 0
    return entered.hits, returned.hits


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=120)
def test_all_copies_of_all_specialisations_are_meant():
    import numpy as np
    from numba import njit

    @njit
    def total(a):
        s = 0.0
        for i in range(a.shape[0]):
            s += a[i]
        return s

    @njit
    def fact(n):
        return 1 if n < 2 else n * fact(n - 1)

    @njit
    def calls_fact(n):
        return fact(n)

    doubles, floats = np.ones(5), np.ones(5, np.float32)
    assert (total(doubles), total(floats), fact(5), calls_fact(5)) == (5, 5, 120, 120)
    prefix = f"{__name__}.test_all_copies_of_all_specialisations_are_meant.<locals>"
    assert _hits(f"{prefix}.total", lambda: total(doubles), lambda: total(floats)) == (2, 2)
    assert _hits(f"{prefix}.fact", lambda: fact(5)) == (5, 5)
    assert _hits(f"{prefix}.calls_*", lambda: calls_fact(1)) == (1, 1)


@pytest.mark.stress
@isolated(modules=NUMBA, timeout=120)
def test_what_runs_a_body_that_was_inlined_has_the_functions_name():
    import numpy as np
    from numba import float64, vectorize
    from numba.experimental import jitclass

    @vectorize(["float64(float64)"])
    def triple(x):
        return x * 3

    @jitclass([("value", float64)])
    class Cell:
        def __init__(self, value):
            self.value = value

        def add(self, x):
            self.value += x
            return self.value

        @property
        def half(self):
            return self.value / 2

    ones, cell = np.ones(3), Cell(1.0)
    assert (cell.add(2.0), cell.half, triple(ones).sum()) == (3, 1.5, 9)
    prefix = f"{__name__}.test_what_runs_a_body_that_was_inlined_has_the_functions_name.<locals>"
    assert _hits(f"{prefix}.triple", lambda: triple(ones)) == (1, 1)
    assert _hits(f"{prefix}.Cell.add", lambda: cell.add(1.0), lambda: cell.half) == (1, 1)
    assert _hits(f"{prefix}.Cell.half", lambda: cell.half, lambda: cell.value) == (1, 1)
    assert _hits(f"{prefix}.Cell.*", lambda: cell.add(1.0), lambda: cell.half, lambda: Cell(1.0)) == (3, 3)


@isolated(modules=NUMBA, timeout=120)
def test_a_name_that_is_not_there_is_answered_with_one_that_is():
    from numba import njit

    import kprobes

    @njit
    def compiled(x):
        return x + 1

    compiled(1)
    with pytest.raises(
        LookupError, match=r"no function of \[numba\] matches '.*complied'; did you mean numba:.*compiled\?"
    ):
        kprobes.attach(
            f"numba:{compiled.__module__}.{compiled.__qualname__.replace('compiled', 'complied')}", pre=print
        ).attach()
