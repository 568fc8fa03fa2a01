"""A program that tempts the compiler to call memset, copy by vectors, divide by calls; and units made of it."""

from __future__ import annotations

from typing import Any

from native_machine import define

from sandbox.native import Unit

PROGRAM = """
@struct
class Inner:
    a: u8
    b: u32

@struct
class Odd:
    flag: bool_
    count: u16
    inner: Inner
    tail: array[Inner, 3]
    next: ptr["Odd"]
    call: fn[void, u64]
    last: u8

@struct
class Large:
    words: array[u64, 512]

@native(bounded=False)
def clear(p: ptr[u8], n: u64) -> void:
    for i in range(n):
        p[i] = 0

@native(bounded=False)
def move(p: ptr[u64], q: ptr[u64], n: u64) -> void:
    for i in range(n):
        p[i] = q[i]

@native(bounded=False)
def total(p: ptr[u32], n: u64) -> u32:
    sum: u32 = 0
    for i in range(n):
        sum += p[i] * 3
    return sum

@native
def clear_large(p: ptr[Large]) -> void:
    zero_fill(p)

@native
def copy_large(p: ptr[Large], q: ptr[Large]) -> void:
    copy(p, q)

@native
def divide(a: u64, b: u64, c: i64, d: i64) -> i64:
    return cast(i64, a // b + a % b) + c // d + c % d

@native
def odd(p: ptr[Odd]) -> void:
    p.last = 1
    p.next = null
    p.tail[2].b += 1

@native
def bits(a: u64, b: u8) -> u64:
    return popcount(a) + leading_zeros(a) + trailing_zeros(a) + byteswap(a) + cast(u64, popcount(b))

@native
def locals_of_all_kinds(n: u64) -> u64:
    table: array[u64, 400] = zeroed
    pair: Inner = zeroed
    table[n % 400] = n
    pair.b = cast(u32, n)
    return table[n % 399] + cast(u64, pair.b)
"""


ALL = ("clear", "move", "total", "clear_large", "copy_large", "divide", "odd", "bits", "locals_of_all_kinds")


def unit(*names: str, text: str = PROGRAM, **options: Any) -> Unit:
    defined = define(text)
    return Unit("test", [defined[name] for name in names], **options)
