"""Functions whose calls LLVM inlines in various ways, and which of them are to be told of."""

from __future__ import annotations

import numpy as np
from numba import float64, njit, prange, vectorize
from numba.experimental import jitclass


@njit
def heavy(x, k):
    s = 0.0
    if k > 3.5:
        for i in range(10):
            for j in range(i):
                s += np.tan(s * j) + np.arctan2(s, x) + np.sin(x * i) * np.cos(x)
                if s > 3:
                    s += np.log(abs(s) + 1) * np.exp(-x)
                s += np.tan(s * i) + np.arctan2(x, s) + np.sin(x * j) * np.cos(s)
                if s < 1:
                    s += np.log(abs(x) + 1) * np.exp(-s)
    return s


@njit
def mixed(x):
    k = 1.0
    return heavy(x, k) + heavy(x, x) + heavy(x, x + 1)


@vectorize
def scaled(x):
    return x * 2 + 1


@njit
def steps(n):
    for i in range(n):
        yield i * 2


@njit
def adds(n):
    total = 0
    for i in steps(n):
        total += i
    return total


@njit
def small(x):
    return x + 1


@njit(parallel=True)
def in_parallel(a):
    total = 0.0
    for i in prange(a.shape[0]):
        total += small(a[i])
    return total


@jitclass([("value", float64)])
class Cell:
    def __init__(self, value):
        self.value = value

    def add(self, x):
        self.value += x
        return self.value


def run():
    """Everything once."""
    ones = np.ones(8)
    return mixed(4.0), scaled(ones), adds(3), in_parallel(ones), Cell(1.0).add(2.0)


CALLS = {"heavy": 3, "scaled": 8, "steps.next": 4, "small": 8, "Cell.add": 1, "mixed": 1}
"""How often `run` calls its functions."""
