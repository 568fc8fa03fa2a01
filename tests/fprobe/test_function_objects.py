"""Functions of ctypes, cffi, llvmlite and Numba as targets of attach()."""

from __future__ import annotations

import ctypes

import pytest

import fprobe
import sandbox
from fprobe.function_objects import target_of
from tests.isolation import isolated

SOURCE = "define i64 @twice(i64 %n) noinline {\n %r = add i64 %n, %n\n ret i64 %r\n}\n"


@isolated
def test_a_function_of_ctypes():
    labs = ctypes.CDLL(None).labs
    labs.argtypes, labs.restype = [ctypes.c_long], ctypes.c_long
    with fprobe.attach(labs, action=fprobe.Stat()) as probe:
        assert [labs(-3), labs(4)] == [3, 4]
    assert (probe.hits, probe.missed, probe.errors.count, probe.skipped) == (2, 0, 0, [])


@isolated
def test_a_function_of_cffi():
    ffi = pytest.importorskip("cffi").FFI()
    ffi.cdef("long labs(long n);")
    labs = ffi.dlopen(None).labs
    with fprobe.attach(labs, action=fprobe.Count()) as probe:
        assert labs(-3) == 3
    assert probe.hits == 1


@isolated
def test_functions_of_llvmlite():
    import llvmlite.binding as llvm
    from llvmlite import ir

    parsed = llvm.parse_assembly(SOURCE).get_function("twice")
    made = ir.Function(ir.Module(), ir.FunctionType(ir.IntType(64), [ir.IntType(64)]), "twice")
    module = sandbox.load(SOURCE, name="prog")
    for function in (parsed, made):
        with fprobe.attach(function, action=fprobe.Count()) as probe:
            assert module["twice"](4) == 8 and probe.targets == ["twice"]
        assert probe.hits == 1


def test_a_function_of_numba_is_all_of_its_specialisations():
    numba = pytest.importorskip("numba")
    assert target_of(numba.njit(isolated)) == "numba:tests.isolation.isolated"


@pytest.mark.parametrize("target", ["vfs_*", ["a", "b"], [1, 2], ("a",), 7, None])
def test_other_targets_stay_as_they_are(target):
    assert target_of(target) is target
