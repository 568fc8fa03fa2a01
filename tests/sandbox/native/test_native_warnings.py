"""What compiles and is probably not what was meant."""

from __future__ import annotations

import warnings

import pytest
from native_machine import define

from sandbox.native import NativeWarning

WARNED = [
    ("unused: u64 = a\nreturn b", "3: unused is assigned and never read"),
    ("table: array[u8, 4] = zeroed\nreturn b", "3: table is assigned and never read"),
    ("x: u64 = a\nx += 1\nreturn b", "3: x is assigned and never read"),
    ("if a < 0:\n    return b\nreturn a", "3: this is always False for values of u64"),
    ("if a >= 0:\n    return b\nreturn a", "3: this is always True for values of u64"),
    ("if 0 <= a < 100:\n    return b\nreturn a", "3: this is always True for values of u64"),
    ("if cast(u8, a) > 255:\n    return b\nreturn a", "3: this is always False for values of u8"),
    ("if cast(i8, a) >= -128:\n    return b\nreturn a", "3: this is always True for values of i8"),
    ("return a << 64", "3: a shift by 64 moves every bit out of u64"),
    ("a >>= 70\nreturn a", "3: a shift by 70 moves every bit out of u64"),
    ("return cast(u64, cast(u32, a) * 8)", "3: this wraps in u32 before it is widened: cast the operands"),
    ("return cast(u64, cast(u32, a) << 8)", "3: this wraps in u32 before it is widened: cast the operands"),
    ("return cast(u64, addressof(b))", "3: this is the address of a local variable, which is gone when the function"),
    ("global total\ntotal = cast(u64, addressof(b))\nreturn b", "4: this is the address of a local variable"),
    ("p = cast(ptr[u64], a)\nload(p)\nreturn b", "4: the result of load() is not used"),
    ("atomic_cas(addressof(total), a, b)\nreturn b", "3: the result of atomic_cas() is not used"),
    ("popcount(a)\nreturn b", "3: the result of popcount() is not used"),
    ("for i in range(10):\n    i += 1\nreturn b", "4: assigning to i does not change the iterations of its loop"),
]
SILENT = [
    "for i in range(10):\n    pass\nreturn b",
    "_unused: u64 = a\nreturn b",
    "x: u64 = 0\np = addressof(x)\np[0] = 1\nreturn x",
    "if a > 0 and a < 10:\n    return b\nreturn a",
    "return cast(u64, cast(u32, a) + 8) << 63",
    "table: array[u8, 4] = zeroed\ntable[0] = 1\nreturn cast(u64, table[1])",
    "atomic_add(addressof(total), 1)\nreturn a",
    "while True:\n    a += 1\n    if a > 7:\n        return a",
]


def warned(body: str) -> list[warnings.WarningMessage]:
    indented = body.replace("\n", "\n    ")
    text = f"total = global_var(u64)\n@native(bounded=False)\ndef f(a: u64, b: u64) -> u64:\n    {indented}\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        define(text)["f"].check()
    return [each for each in caught if each.category is NativeWarning]


@pytest.mark.parametrize(("body", "message"), WARNED, ids=str)
def test_warned_at_its_line(body: str, message: str) -> None:
    (found,) = warned(body)
    assert f"{found.lineno - 1}: {found.message}".startswith(message)
    assert found.filename.startswith("<native ")


@pytest.mark.parametrize("body", SILENT)
def test_no_warning_for_what_is_usual(body: str) -> None:
    assert warned(body) == []
