"""Functions of the kinds that Numba compiles for long, and the results that they have."""

from __future__ import annotations

import numpy as np
from numba import float64, guvectorize, jit, njit, objmode, prange, stencil, vectorize
from numba.experimental import jitclass
from numba.extending import overload


@njit
def big(x):
    s = 0.0
    for i in range(10):
        s += np.sin(x * i) * np.cos(x)
        if s > 3:
            s = s * x - np.exp(x)
        for j in range(i):
            s += np.tan(s * j) + np.arctan2(s, x)
    return s


@njit
def calls_big(x):
    return big(x) + big(x + 1) + big(x - 2)


@njit(parallel=True)
def parallel_sum(a):
    s = 0.0
    for i in prange(a.shape[0]):
        s += a[i] * 2
    return s


@njit(fastmath=True, nogil=True, boundscheck=True)
def checked(a, i):
    return a[i]


@vectorize
def dynamic(x, y):
    return x * y + 1


@guvectorize(["void(float64[:],float64[:])"], "(n)->()")
def summed(a, r):
    r[0] = a.sum()


def replaced(x): ...


@overload(replaced)
def replacement(x):
    def impl(x):
        return x + 5

    return impl


@njit
def uses_overload(x):
    return replaced(x)


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


@jit(forceobj=True)
def as_object(x):
    return str(x)


@njit
def partly_object(x):
    with objmode(y="int64"):
        y = int(x)
    return y + 1


@stencil
def neighbours(a):
    return a[0] + a[1]


@njit
def uses_stencil(a):
    return neighbours(a)


@njit
def text(s):
    return s + "!"


@njit
def sorts(n):
    values = [(i * 7919) % n for i in range(n)]
    values.sort()
    found = {}
    for v in values:
        found[v] = v * 2
    return sum(values) + len(found)


def run():
    """Everything once, and what it gives."""
    ones, cell = np.ones(5), Cell(1.0)
    return [
        *(calls_big(1.5), big(1.5), parallel_sum(np.ones(10000)), checked(ones, 1), checked(ones[::2], 1)),
        *(dynamic(ones, 2.0).tolist(), summed(np.ones((2, 3))).tolist()),
        *(uses_overload(1), cell.add(2.0), cell.half, cell.value, as_object(1), partly_object(3)),
        *(uses_stencil(ones).tolist(), text("a€"), sorts(500)),
    ]


CALLS = {
    "big": 4, "calls_big": 1, "parallel_sum": 1, "checked": 2, "dynamic": 5, "summed": 2, "uses_overload": 1, "Cell.add": 1,
    "Cell.half": 1, "Cell.__init__": 1, "text": 1, "sorts": 1, "as_object": 1,
}  # fmt: skip
"""How often `run` calls its functions."""
LOOPS = {"dynamic", "summed"}
"""Those that have one call if LLVM has inlined them into their loops for NumPy."""
NAMES = {"Cell.add.method"}
"""Some that Numba adds to."""
