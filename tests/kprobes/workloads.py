"""Work whose every instruction is probed: the functions that it is about, and what does it."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from stepping import Span


class Work(NamedTuple):
    """`run` gives the same result each time, and enters nothing of `spans` in another thread.

    It calls machine code without ado: whatever else it does is stepped through as well, and that costs 25 us an instruction.
    """

    name: str
    spans: list[Span]
    run: Callable[[], object]
    end: Callable[[], object] = lambda: None


def module_spans(program: Any) -> list[Span]:
    """The functions of a program, but for those with instructions that the disassembler does not know (AVX512-FP16)."""
    from benchmarks.jump_coverage import functions_of_program

    return [span for span in functions_of_program(program) if _is_known(*span)]


def _is_known(start: int, end: int) -> bool:
    from instructions import boundaries

    try:
        return bool(boundaries(start, end))
    except ValueError:
        return False


def library_spans(name: str, path: str) -> list[Span]:
    from sandbox.images import process_text

    ctypes.CDLL(path)
    return [(start, end) for start, end in process_text.library_called(name).described_code() if start < end]


def demo() -> Work:
    from sandbox import demo, load

    program = load(demo.source(), name="demo.every")
    demo_main = program["demo_main"].pointer
    return Work("the demo program", module_spans(program), lambda: demo_main(1))


def generated(seed: int) -> Work:
    from program_generator import generate

    from sandbox import load

    program = load(generate(seed, functions=5).ir, name=f"generated{seed}")
    main = program["main"].pointer
    return Work(f"generated program {seed}", module_spans(program), lambda: main(1), program.unload)


PLAIN_TEXT = b"".join(bytes([n * n & 0xFF, n & 0x3F, 7]) for n in range(1 << 16))[: 1 << 16]


def libz() -> Work:
    """Compress and decompress 64 KB."""
    spans = library_spans("libz", "libz.so.1")
    lib = ctypes.CDLL("libz.so.1")

    def there_and_back() -> tuple[object, ...]:
        packed, unpacked = ctypes.create_string_buffer(1 << 17), ctypes.create_string_buffer(1 << 17)
        size, back = ctypes.c_ulong(1 << 17), ctypes.c_ulong(1 << 17)
        first = lib.compress(packed, ctypes.byref(size), PLAIN_TEXT, ctypes.c_ulong(len(PLAIN_TEXT)))
        second = lib.uncompress(unpacked, ctypes.byref(back), packed, size)
        assert unpacked.raw[: back.value] == PLAIN_TEXT
        return first, second, packed.raw[: size.value]

    return Work("libz", spans, there_and_back)


GRID = [0.0, -0.0, 0.5, 1.0, -1.5, 3.1, 1e-9, 1e9, 700.0, -745.2, 1e300, float("inf"), float("nan")]
UNARY = "sin cos tan exp log exp2 cbrt tgamma erf atan asin j0 floor sqrt".split()  # noqa: SIM905 (a list of words)


def libm() -> Work:
    """Functions over a fixed grid."""
    spans = library_spans("libm", "libm.so.6")
    lib = ctypes.CDLL("libm.so.6")
    functions = [getattr(lib, name) for name in UNARY]
    for function in functions:
        function.argtypes, function.restype = [ctypes.c_double], ctypes.c_double
    lib.pow.argtypes, lib.pow.restype = [ctypes.c_double, ctypes.c_double], ctypes.c_double

    def grid() -> bytes:
        found = [function(x) for function in functions for x in GRID]
        found += [lib.pow(x, y) for x in GRID for y in GRID]
        return struct.pack(f"<{len(found)}d", *found)

    return Work("libm", spans, grid)


SQL = """create table t(a integer primary key, b text, c real); insert into t(b, c) values('x', 1.5), ('y', -2.25), ('zz', 1e10);
create index i on t(b); update t set c = c * 3 where b > 'x'; select sum(c), group_concat(b) from t where c > -1 order by a;
select printf('%05d|%s|%.3f', a, upper(b), c) from t; delete from t where a = 2; select count(*) from t;"""


def libsqlite3() -> Work:
    """A fixed script. Scratch registers are live across this library's calls."""
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

    return Work("libsqlite3", spans, script)
