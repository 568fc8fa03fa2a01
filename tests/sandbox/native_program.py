"""A program in the native language."""

from __future__ import annotations

import sandbox
from sandbox.native import array, i8, i32, native, ptr, u64, void, zeroed


@native
def double(x: u64) -> u64:
    return x * 2


@sandbox.function
def quadruple(x: u64) -> u64:
    return double(double(x))


@sandbox.function
def sum_of_squares(n: u64) -> u64:
    total: u64 = 0
    for i in range(n):
        total += square(i)
    return total


@sandbox.function
def square(x: u64) -> u64:
    return x * x


@sandbox.function
def sign(x: i32) -> i8:
    if x < 0:
        return -1
    return 1 if x > 0 else 0


@sandbox.function
def is_even(x: u64) -> bool:
    return x & 1 == 0


@sandbox.function
def fill(to: ptr[u64], count: u64, value: u64) -> void:
    for i in range(count):
        to[i] = value


@sandbox.function(name="spread", module="native_spread")
def elsewhere(x: u64) -> u64:
    room: array[u64, 4] = zeroed
    room[x & 3] = x
    return room[0] + room[3]


@native(nokprobe=True, noinline=True)
def halve(x: u64) -> u64:
    return x // 2


@sandbox.function(notrace=True, module="native_attributes")
def unwatched(x: u64) -> u64:
    return halve(x)


@sandbox.function(nokprobe=True, module="native_attributes")
def untouched(entry: u64) -> u64:
    return unwatched(entry) + 1
