"""Functions of the kinds that Numba compiles soon, and the results that they have."""

from __future__ import annotations

import ctypes

import numpy as np
from numba import cfunc, njit, vectorize


@njit
def small(x):
    return x + 1


@njit
def calls_small(x):
    return small(x) * 2


@njit
def fact(n):
    return 1 if n < 2 else n * fact(n - 1)


@njit
def gen(n):
    for i in range(n):
        yield i * 2


@njit
def uses_gen(n):
    s = 0
    for v in gen(n):
        s += v
    return s


def make(k):
    @njit
    def inner(x):
        return x + k

    return inner


add_one, add_two = make(1), make(2)


@vectorize(["float64(float64,float64)"])
def eager(x, y):
    return x * y + 1


@cfunc("float64(float64)")
def callback(x):
    return x + 1


@njit
def raises(n):
    if n > 2:
        raise ValueError("too large")
    return n


def _raised():
    try:
        raises(3)
    except ValueError as error:
        return str(error)
    return ""


def run():
    """Everything once, and what it gives."""
    ones = np.ones(5)
    through_c = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(callback.address)
    return [
        *(calls_small(3), small(3), fact(10), list(gen(3)), uses_gen(4), add_one(1), add_two(1)),
        *(eager(ones, 2.0).tolist(), through_c(2.0), raises(1), _raised()),
    ]


CALLS = {
    "small": 1, "calls_small": 1, "fact": 10, "gen.next": 4, "make.<locals>.inner": 2, "eager": 5, "callback": 1, "raises": 2,
}  # fmt: skip
"""How often `run` calls its functions, without the calls that LLVM inlines: those of `small` in `calls_small`."""
LOOPS = {"eager"}
"""Those that have one call if LLVM has inlined them into their loops for NumPy."""
NAMES = {"eager.__ufunc__", "gen.next"}
"""Some that Numba adds to."""
