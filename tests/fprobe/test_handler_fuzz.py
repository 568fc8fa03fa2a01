"""Random handlers over maps: refused with a NativeError, or compiled to an object that verifies. Nothing else happens."""

from __future__ import annotations

import linecache
import warnings
from random import Random
from typing import Any

import pytest

from ftrace.core.handlers.native_link import ALLOWED
from sandbox.native import NativeError, Unit, i32, void
from sandbox.native.back.compile import compile_unit
from sandbox.native.back.verify import verify_object

HEAD = """from __future__ import annotations
import fprobe
from native_probes import by_ip, cells, depth, rows, seen, sizes, totals
from sandbox.native import addressof, array, atomic_add, cast, i32, null, probe_read, probe_read_str, ptr, rdtsc, u64
from sandbox.native import void, zeroed

@fprobe.native
def handler(fp, ip, ret_ip, regs, data{data}){result}:
    x: array[u64, 4] = zeroed
    y: u64 = 3
"""
ATOMS = [
    "ip", "regs.di", "y", "x[1]", "3", "0", "by_ip[ip]", "by_ip.get(ip)", "by_ip.has(y)", "seen[3].calls", "totals[y]",
    "totals[1]", "cells[ip]", "seen[0].sizes[2]", "seen[7].least", "depth.value", "data[0]", "by_ip", "depth", "sizes",
    "rdtsc()", "cast(i32, y)", "addressof(x)", "addressof(by_ip[y])", "null", "data", "fp", "True", "by_ip.get",
    "probe_read(addressof(x), ip, 32)", "probe_read_str(addressof(x), y, y)", "by_ip[by_ip[ip]]",
]  # fmt: skip
OPERATORS = ["+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^", "<", "==", "and"]


def expression(random: Random, depth: int = 0) -> str:
    choice = random.random()
    if depth > 2 or choice < 0.5:
        return random.choice(ATOMS)
    parts = expression(random, depth + 1), expression(random, depth + 1)
    if choice < 0.75:
        return f"({parts[0]} {random.choice(OPERATORS)} {parts[1]})"
    return (
        f"by_ip[{parts[0]}]" if choice < 0.85 else f"{random.choice(['min', 'max', 'atomic_add'])}({', '.join(parts)})"
    )


def statement(random: Random) -> str:
    one, other, target = expression(random), expression(random), random.choice(ATOMS)
    return random.choice(
        [
            f"    {target} {random.choice(['+=', '-=', '=', '|=', '<<=', '//='])} {one}\n",
            f"    sizes.add({one})\n",
            f"    rows.add({one}, {other})\n",
            f"    if {one} != 0:\n        {target} += {other}\n",
            f"    return {one}\n",
            f"    for i in range({random.choice(['4', 'y & 7', 'y'])}):\n        totals[i] += {one}\n",
        ]
    )


def handler(random: Random, number: int) -> Any:
    data, result = random.choice(["", ": ptr[u64]"]), random.choice(["", " -> i32", " -> void"])
    text = HEAD.format(data=data, result=result) + "".join(statement(random) for _ in range(random.randint(1, 3)))
    name = f"<random {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)
    return names["handler"]


@pytest.mark.stress
@pytest.mark.parametrize(
    ("seed", "count"),
    [(0, 150), *(pytest.param(seed, 400, marks=pytest.mark.stress) for seed in range(2))],
)
def test_random_handlers(seed: int, count: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("FPROBE_NO_CACHE", "1")
    random, refused, compiled = Random(seed), 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            try:
                made = handler(random, number)
                for role in (i32, void):
                    compiled += _compiles(made.returning(role))
            except SyntaxError:  # NativeError, or what is no Python either
                refused += 1
    assert refused > count // 4 and compiled > count // 40


def _compiles(made: Any) -> bool:
    """Whether it is a handler in this role; then its object has to verify."""
    try:
        made.check()
    except NativeError:
        return False
    assert verify_object(compile_unit(Unit("random", [made], checked=True)), ALLOWED) == []
    return True
