"""Hazard: several functions have one name, and the report has several rows that nobody can tell apart."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from fprobe.run.launcher.names import Named, Names
from sandbox.images.numba.mangling import argument_types

TYPES = {
    "_ZN4mine1fB2v1B4tag1E5ArrayIdLi1E1C7mutable7alignedEx": "array(float64, 1d, C), int64",
    "_ZN4mine1fEB2v15ArrayIfLi2E1F7mutable9unalignedE": "array(float32, 2d, F, mutable, unaligned)",
    "_ZN4mine1fB2v1E8UniTupleIxLi2EE": "UniTuple(int64, 2)",
    "_ZN4mine1fB2v1E24omitted_28default_3d3_29": "omitted(default=3)",
    "_ZN4mine1fB2v1EN3pkg4kindEDhv": "pkg.kind, float16, none",
    "_ZN4mine1fB2v1E": "",
    "_ZN4mine1fB2v1EQ": "",
    "_ZN4mine1fB2v1E5ArrayIdLi1": "",
    "__ufunc__._ZN4mine1fB2v1Edd": "float64, float64",
    "plain": "",
}


@pytest.mark.parametrize("symbol", TYPES)
def test_types_in_symbols_of_numba(symbol):
    assert argument_types(symbol) == TYPES[symbol]


def test_a_name_is_extended_only_as_far_as_it_has_to_be():
    names = Names()
    names.take_functions([(1, "f", "numba", "int64"), (2, "f", "numba", "float64"), (3, "g", "jit", "")])
    assert [str(names.function(address)) for address in (1, 2, 3)] == [
        "f(int64) [numba]",
        "f(float64) [numba]",
        "g [jit]",
    ]
    names.take_functions([(4, "g", "jit", ""), (3, "g", "jit", "")])
    assert [str(names.function(address)) for address in (3, 4)] == ["g at 0x3 [jit]", "g at 0x4 [jit]"]
    child = Names()
    child.inherit(names)
    assert child.function(4) == Named("g", "jit", "", "0x4", "g")


@pytest.mark.stress
def test_specialisations_of_a_numba_function(launch):
    pytest.importorskip("numba")
    source = """
    import numba
    @numba.njit
    def cube(n): return n * n * n
    print(cube(2), cube(2.0), cube(3.0))
    """
    done = launch("--stat", "numba:__main__.cube", source=source)
    rows = {row["types"]: row["hits"] for row in done.report["processes"][0]["functions"]}
    assert rows == {"int64": 1, "float64": 2}


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_static_functions_of_one_name(launch, tmp_path):
    for number in (1, 2):
        text = f"static __attribute__((noipa)) int step(int n) {{ return n + {number}; }}\n"
        (tmp_path / f"part{number}.c").write_text(f"{text}int part{number}(int n) {{ return step(n) + 1; }}\n")
    library = tmp_path / "libparts.so"
    subprocess.run(["cc", "-shared", "-fPIC", "part1.c", "part2.c", "-o", library], cwd=tmp_path, check=True)
    source = f"import ctypes; parts = ctypes.CDLL({str(library)!r}); parts.part1(1); parts.part2(1); parts.part2(1)"
    done = launch("--stat", "libparts:*", source=source)
    rows = done.report["processes"][0]["functions"]
    steps = {row["place"]: row["hits"] for row in rows if row["name"] == "step"}
    assert sorted(steps.values()) == [1, 2] and all(place.startswith("+0x") for place in steps)
    assert all("place" not in row for row in rows if row["name"] != "step")
