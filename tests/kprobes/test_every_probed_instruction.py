"""A kprobe on every instruction leaves every result as it was and counts right: stepped, boosted, and as a jump."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import every
import pytest
from every import MODES, Everything, traced
from isolation import isolated

ACCEPTED = ("leaves no room in its slot", "is a trap of its own")
"""Why an instruction of compiled code may be refused."""


def check_refusals(everything: Everything) -> None:
    unknown = [str(error) for error in everything.refused.values() if not any(why in str(error) for why in ACCEPTED)]
    assert not unknown, unknown[:5]


def compare(
    spans: list[every.Span], workload: Callable[[], object], modes: Sequence[str] = MODES, stride: int = 1
) -> None:
    """In every mode: results as without probes, counts as a tracer's, nothing refused or left out without a reason."""
    expected = workload()
    try:
        reference = traced(spans, workload)
    except every.CannotTrace as why:
        pytest.skip(str(why))
    for mode in modes:
        everything = Everything(spans, mode, stride)
        check_refusals(everything)
        result, counts = everything.counts(workload)
        assert result == expected, mode
        probed = {p.addr for p in everything.probes}
        wrong = {hex(ip): (counts[ip], reference[ip]) for ip in probed if counts[ip] != reference[ip]}
        assert not wrong, (mode, len(wrong), list(wrong.items())[:10])
        assert sum(counts.values()) >= sum(reference[ip] for ip in probed) > 0
        assert everything.missed() == 0
        share = everything.optimized
        assert share > 0.85 if mode.startswith("optimized") else share == 0, (mode, share)
        everything.close()
        assert workload() == expected


def module_spans(program: Any) -> list[every.Span]:
    from sandbox.symbols import symbol_table

    found = [symbol for symbol in symbol_table if symbol.module == program.name and symbol.size]
    return [(s.address, s.end) for s in found if any(s.address in text for text in program.texts)]


def library_spans(name: str, path: str) -> list[every.Span]:
    from sandbox import process_text

    ctypes.CDLL(path)
    return [(start, end) for start, end in process_text.library_called(name).functions() if start < end]


@isolated(timeout=110)
def test_the_demo_program():
    """KP-26..34, KP-60..72"""
    from sandbox import demo, load

    program = load(demo.source(), name="demo.every")
    compare(module_spans(program), lambda: program["demo_main"](1))


@isolated(timeout=900)
@pytest.mark.timeout(1000)
@pytest.mark.stress
def test_generated_programs():
    """KP-26..34, KP-60..72; 200 of them"""
    from sandbox import load
    from sandbox.generate import generate

    for seed in range(200):
        program = load(generate(seed, functions=5).ir, name=f"generated{seed}")
        compare(module_spans(program), lambda main=program["main"]: main(1), ("int3", "boosted", "optimized"))
        program.unload()


COMPRESSED = b"".join(bytes([n * n & 0xFF, n & 0x3F, 7]) for n in range(700))


@isolated(timeout=600)
@pytest.mark.timeout(700)
@pytest.mark.stress
def test_libz():
    """KP-26..34, KP-60..72: compress and decompress"""
    spans = library_spans("libz", "libz.so.1")
    lib = ctypes.CDLL("libz.so.1")

    def there_and_back() -> tuple[object, ...]:
        packed, unpacked = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096)
        size, back = ctypes.c_ulong(4096), ctypes.c_ulong(4096)
        first = lib.compress(packed, ctypes.byref(size), COMPRESSED, ctypes.c_ulong(len(COMPRESSED)))
        second = lib.uncompress(unpacked, ctypes.byref(back), packed, size)
        assert unpacked.raw[: back.value] == COMPRESSED
        return first, second, packed.raw[: size.value]

    compare(spans, there_and_back)


GRID = [0.0, -0.0, 0.5, 1.0, -1.5, 3.1, 1e-9, 1e9, 700.0, -745.2, 1e300, float("inf"), float("nan")]


@isolated(timeout=600)
@pytest.mark.timeout(700)
@pytest.mark.stress
def test_libm():
    """KP-26..34, KP-60..72: over a fixed grid; every 11th instruction of the library, of which there are 100,000"""
    spans = library_spans("libm", "libm.so.6")
    lib = ctypes.CDLL("libm.so.6")
    functions = []
    for name in (
        "sin",
        "cos",
        "tan",
        "exp",
        "log",
        "exp2",
        "cbrt",
        "tgamma",
        "erf",
        "atan",
        "asin",
        "j0",
        "floor",
        "sqrt",
    ):
        function = getattr(lib, name)
        function.argtypes, function.restype = [ctypes.c_double], ctypes.c_double
        functions.append(function)
    lib.pow.argtypes, lib.pow.restype = [ctypes.c_double, ctypes.c_double], ctypes.c_double

    def grid() -> bytes:
        found = [function(x) for function in functions for x in GRID]
        found += [lib.pow(x, y) for x in GRID for y in GRID]
        return struct.pack(f"<{len(found)}d", *found)

    compare(spans, grid, ("int3", "boosted", "optimized"), 11)


SQL = """create table t(a integer primary key, b text, c real); insert into t(b, c) values('x', 1.5), ('y', -2.25), ('zz', 1e10);
create index i on t(b); update t set c = c * 3 where b > 'x'; select sum(c), group_concat(b) from t where c > -1 order by a;
select printf('%05d|%s|%.3f', a, upper(b), c) from t; delete from t where a = 2; select count(*) from t;"""


@isolated(timeout=600)
@pytest.mark.timeout(700)
@pytest.mark.stress
def test_libsqlite3():
    """KP-26..34, KP-60..72: a fixed script; every 23rd instruction, since scratch registers are live across its calls"""
    spans = library_spans("libsqlite3", "libsqlite3.so.0")
    lib = ctypes.CDLL("libsqlite3.so.0")
    visitor = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_char_p)
    )

    def script() -> list[object]:
        rows: list[object] = []

        def row(_: object, count: int, values: Any, names: Any) -> int:
            rows.append((values[:count], names[:count]))
            return 0

        handle = ctypes.c_void_p()
        lib.sqlite3_randomness(0, None)  # starts afresh, as otherwise every so many runs there is more to do
        assert lib.sqlite3_open(b":memory:", ctypes.byref(handle)) == 0
        assert lib.sqlite3_exec(handle, SQL.encode(), visitor(row), None, None) == 0
        lib.sqlite3_close(handle)
        return rows

    compare(spans, script, ("int3", "boosted", "optimized"), 23)
