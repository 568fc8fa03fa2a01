"""Pointer-free functions of every shape; compiled code and the Python model must agree on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from native_machine import define

from sandbox.native import NativeFunction

WORDS = ["u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"]
OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "//", "mod": "%", "and": "&", "or": "|", "xor": "^"}
SHIFTS = {"shl": "<<", "shr": ">>"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
DIVISORS = {"1": "1", "2": "2", "3": "3", "7": "7", "64": "64", "100": "100"}
NEGATIVE_DIVISORS = {"m1": "-1", "m2": "-2", "m7": "-7", "m128": "-128"}
UNARY = {"neg": "-", "inv": "~", "plus": "+"}
BITS = ["popcount", "leading_zeros", "trailing_zeros", "byteswap"]


def _function(name: str, parameters: str, result: str, body: str) -> str:
    return f"@native(bounded=False)\ndef {name}({parameters}) -> {result}:\n{body}\n"


def _returning(name: str, parameters: str, result: str, value: str) -> str:
    return _function(name, parameters, result, f"    return {value}")


def _arithmetic(word: str) -> Iterator[str]:
    pair = f"a: {word}, b: {word}"
    for name, operator in OPERATORS.items():
        yield _returning(f"{word}_{name}", pair, word, f"a {operator} b")
        body = f"    a {operator}= b\n    a {operator}= b\n    return a"
        yield _function(f"{word}_{name}_twice", pair, word, body)
    for name, operator in COMPARISONS.items():
        yield _returning(f"{word}_{name}", pair, "bool_", f"a {operator} b")
    for name, operator in UNARY.items():
        yield _returning(f"{word}_{name}", f"a: {word}", word, f"{operator}a")
    yield _returning(f"{word}_min", pair, word, "min(a, b)")
    yield _returning(f"{word}_max", pair, word, "max(a, b) ^ max(a, 7)")
    yield _returning(f"{word}_chain", pair, "bool_", "3 < a <= b < 100")


def _constants(word: str) -> Iterator[str]:
    divisors = DIVISORS if word[0] == "u" else {**DIVISORS, **NEGATIVE_DIVISORS}
    for name, divisor in divisors.items():
        yield _returning(f"{word}_div_{name}", f"a: {word}", word, f"a // {divisor}")
        yield _returning(f"{word}_mod_{name}", f"a: {word}", word, f"a % {divisor}")
        yield _returning(f"{word}_into_{name}", f"a: {word}", word, f"{divisor} // a ^ {divisor} % a")
    for count in (0, 1, 7, int(word[1:]) - 1, int(word[1:]), 200):
        yield _returning(f"{word}_shl_{count}", f"a: {word}", word, f"a << {count}")
        yield _returning(f"{word}_shr_{count}", f"a: {word}", word, f"a >> {count}")


def _shifts(word: str) -> Iterator[str]:
    for count in ("u8", "u16", "u32", "u64"):
        for name, operator in SHIFTS.items():
            yield _returning(f"{word}_{name}_{count}", f"a: {word}, b: {count}", word, f"a {operator} b")
            yield _function(
                f"{word}_{name}_{count}_update", f"a: {word}, b: {count}", word, f"    a {operator}= b\n    return a"
            )


def _conversions(word: str) -> Iterator[str]:
    for other in WORDS:
        yield _returning(f"{word}_from_{other}", f"a: {other}", word, f"cast({word}, a)")
        yield _returning(f"{word}_of_{other}", f"a: {other}", word, f"{word}(a)")
    yield _returning(f"{word}_from_bool", "a: bool_", word, f"cast({word}, a)")
    for name in BITS:
        yield _returning(f"{word}_{name}", f"a: {word}", word, f"{name}(a)")


def _ranges(word: str) -> Iterator[str]:
    body = """    seen: u64 = 0
    last: {word} = 77
    for i in range({range}):
        if i == 5:
            continue
        if seen == 1000:
            break
        seen += 1
        last = last * 3 + i
    return cast({word}, seen) ^ last
"""
    shapes = {"one": "a", "two": "a, b", "by_3": "a, b, 3", "by_200": "a, b, 200"}
    for name, shape in {**shapes, "down": "b, a, -1", "down_7": "a, b, -7"}.items():
        text = body.replace("{word}", word).replace("{range}", shape)
        yield _function(f"{word}_range_{name}", f"a: {word}, b: {word}", word, text)


HAND_WRITTEN = """
LIMIT = 40
SEVEN = const(i32, 7)

@struct
class Point:
    x: i32
    hot: bool_
    corners: array[u8, 5]

@native
def helper(a: i32, b: u8) -> i32:
    if a < 0:
        return -a
    return a + cast(i32, b)

@native
def calls(a: i32, b: u8) -> i32:
    return helper(helper(a, b), b) - helper(SEVEN, 1)

@native
def upper_half(a: u64, b: u64) -> u64:
    return multiply_high(a, b) ^ multiply_high(a, a)

@native
def collatz(n: u32) -> u32:
    steps: u32 = 0
    for _ in range(200):
        if n <= 1:
            break
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps

@native(bounded=False)
def gcd(a: u64, b: u64) -> u64:
    while b != 0:
        rest = a % b
        a = b
        b = rest
    return a

@native
def logic(a: bool_, b: bool_, c: bool_) -> bool_:
    return a and not b or (b ^ c) & (a | c) and not (a == c)

@native(bounded=False)
def short_circuit(a: i64, b: i64) -> i64:
    hits: i64 = 0
    if b != 0 and a // b > 3 or a == 7:
        hits += 1
    while a > 0 and (b < 0 or a % 3 != 0):
        a -= 1
        hits += 2
        if hits > 500:
            return -hits
    return hits

@native
def nested(n: u8) -> u64:
    total: u64 = 0
    for i in range(n):
        for j in range(3, 9, 2):
            if j == 5 and i % 2 == 0:
                continue
            if i > 200:
                break
            total += cast(u64, i) * cast(u64, j)
        total ^= 1
    return total

@native
def local_memory(a: u8, b: i32) -> i32:
    digits: array[u16, 8] = zeroed
    point: Point = zeroed
    for i in range(8):
        digits[i] = cast(u16, a) * cast(u16, i)
        point.corners[i % 5] += a
    point.x = b
    point.hot = digits[3] > 100
    if point.hot:
        point.x -= cast(i32, digits[7])
    total: i32 = 0
    for i in range(8):
        total += cast(i32, digits[i])
    return total ^ point.x ^ cast(i32, point.corners[a % 5])

@native
def outside(index: u64, value: u16) -> u16:
    table: array[u16, 10] = zeroed
    table[0] = 5
    table[index] += value
    return table[index] + table[cast(u8, index)]

@native
def choose(a: i16, b: i16) -> i16:
    kind: u8 = 0
    if a > 100:
        kind = 1
    elif a < -100:
        kind = 2
    elif a == b:
        return 0
    else:
        kind = 3
    return a if kind == 1 else b if kind == 2 else -1 if likely(a < b) else min(a, LIMIT)

@native(bounded=False)
def forever(a: u32) -> u32:
    n: u32 = 0
    while True:
        n += 1
        if n * n >= a or n > 1000:
            return n

@native
def declared_later(a: u8) -> u8:
    x: u8
    if a > 7:
        x = a
    else:
        x = 7 - a
    return x

@native
def masks(a: u64, b: i32) -> u64:
    return (a & ~0xFFF) | (a & (1 << 12) - 1) ^ cast(u64, b & ~1)

@native
def fenced(a: u32) -> u32:
    signal_fence()
    fence()
    pause()
    return a + 1
"""


def functions() -> dict[str, Any]:
    """Name -> native function, the whole corpus."""
    parts = [
        text
        for word in WORDS
        for family in (_arithmetic, _constants, _shifts, _conversions, _ranges)
        for text in family(word)
    ]
    names = define("\n".join([HAND_WRITTEN, *parts]))
    return {name: value for name, value in names.items() if isinstance(value, NativeFunction) and name != "helper"}
