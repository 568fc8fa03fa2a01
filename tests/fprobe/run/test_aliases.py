"""Hazard: a function is shown under a name of the C library's own, which nobody has asked for."""

from __future__ import annotations

import pytest
from sampled import sampled

from sandbox.symbols.table import Symbol, locate, preference

BEST = {
    "malloc": ["__GI___libc_malloc", "__libc_malloc", "malloc", "__malloc"],
    "cos": ["__cos", "cosf32x", "cosf64", "cos"],
    "memmove": ["memcpy@GLIBC_2.2.5", "memmove"],
    "fib": ["fib.localalias", "fib"],
    "puts": ["_IO_puts", "puts"],
    "lgamma_r": ["lgammaf64_r", "__lgamma_r", "lgamma_r"],
    "__libc_start_main": ["__libc_start_main_impl", "__libc_start_main@GLIBC_2.2.5", "__libc_start_main"],
}


@pytest.mark.parametrize("best", sampled(BEST, 2))
def test_the_name_that_programmers_write(best):
    assert min(BEST[best], key=preference) == best
    symbols = [Symbol(name, 0x1000, 16, "m") for name in BEST[best]]
    found = locate(symbols, 0x1004)
    assert found is not None and found.symbol.name == best


SOURCE = """
import ctypes, math
math.cos(0.5)
libc = ctypes.CDLL("libc.so.6")
libc.malloc.restype = ctypes.c_void_p
libc.free(ctypes.c_void_p(libc.malloc(100)))
"""


@pytest.mark.parametrize(
    ("pattern", "name", "others"),
    sampled(
        [
            ("libc:*malloc*", "malloc", ["__libc_malloc", "__GI___libc_malloc"]),
            ("libc:__libc_malloc", "__libc_malloc", ["malloc"]),
            ("libc:__libc_mallo?", "__libc_malloc", ["malloc"]),
            ("libm:cos*", "cos", ["cosf32x", "cosf64"]),
            ("libm:cosf64", "cosf64", ["cos"]),
        ],
        1,
    ),
)
def test_an_alias_is_shown_as_it_was_asked_for(launch, pattern, name, others):
    functions = launch("--stat", pattern, source=SOURCE).functions()
    if name not in functions and name.startswith("__"):
        pytest.skip("this C library has no such symbol")
    assert name in functions
    assert not functions.keys() & set(others)
