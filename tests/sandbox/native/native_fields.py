"""Functions that do this and that with what their parameter points to."""

from __future__ import annotations

from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    extern,
    fn,
    fn_preserve_most,
    global_var,
    native,
    null,
    ptr,
    struct,
    u64,
    void,
    volatile_load,
)


@struct
class Point(Structure):
    x: u64
    y: u64
    z: u64
    rest: array[u64, 2]


kept = global_var(u64, 0)
outside = extern("outside", fn[void, ptr[Point]])


@native
def nothing(p: ptr[Point]) -> u64:
    return kept


@native
def reads(p: ptr[Point]) -> u64:
    return p.x + p.y if p.x > 1 else 0


@native
def writes(p: ptr[Point]) -> void:
    p.z = 4


@native
def updates(p: ptr[Point]) -> void:
    p.x += p.y


@native
def loops(p: ptr[Point]) -> void:
    for i in range(4):
        if p.x > i and not p.y < 3:
            p.z |= i


@native
def passes_on(p: ptr[Point]) -> u64:
    writes(p)
    return reads(p) + two(7, p)


@native
def two(number: u64, p: ptr[Point]) -> u64:
    return number + p.z


@native(bounded=False)
def recurs(p: ptr[Point]) -> u64:
    return recurs(p) + p.y if p.x != 0 else 0


@native
def passes_a_value(p: ptr[Point]) -> u64:
    return two(p.x, cast(ptr[Point], kept))


@native
def keeps(p: ptr[Point]) -> u64:
    global kept
    kept = cast(u64, p)
    return p.x


@native
def compares(p: ptr[Point]) -> u64:
    return p.x if p != null else 0


@native
def indexes(p: ptr[Point]) -> u64:
    return p[1].x


@native
def takes_an_address(p: ptr[Point]) -> u64:
    return volatile_load(addressof(p.x))


@native
def takes_an_array(p: ptr[Point]) -> u64:
    return p.rest[1]


@native
def aliases(p: ptr[Point]) -> u64:
    other = p
    return other.x


@native
def changes(p: ptr[Point]) -> u64:
    p = cast(ptr[Point], kept)
    return p.x


@native
def gives_away(p: ptr[Point]) -> u64:
    outside(p)
    return p.x


@native
def passes_on_to_one_that_keeps(p: ptr[Point]) -> u64:
    return keeps(p)


@native
def calls_through_a_pointer(p: ptr[Point]) -> u64:
    return cast(fn[u64, ptr[Point]], kept)(p)


@native
def calls_own_code(p: ptr[Point]) -> u64:
    return cast(fn_preserve_most[u64, ptr[Point]], kept)(p) + p.x
