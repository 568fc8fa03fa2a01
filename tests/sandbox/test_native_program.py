"""`@sandbox.function`: programs in the native language are modules like any other."""

from __future__ import annotations

import ctypes
from typing import Any

import native_program as program
import pytest

import fprobe
import sandbox
from sandbox.loading.native_program import SandboxFunction
from sandbox.native import NativeError, u64


def test_functions_run_as_machine_code_with_their_types() -> None:
    assert program.quadruple(10) == 40
    assert program.sum_of_squares(5) == 30
    assert [program.sign(x) for x in (-7, 0, 9)] == [-1, 0, 1]
    assert [program.is_even(x) for x in (4, 5)] == [True, False]
    assert program.square(1 << 63) == 0
    with pytest.raises(OverflowError, match=r"square\(\) argument 1 \(x\)"):
        program.square(-1)


def test_they_write_through_pointers() -> None:
    room = (ctypes.c_uint64 * 3)()
    program.fill(room, 2, 7)
    assert list(room) == [7, 7, 0]


def test_they_form_a_module_with_stubs() -> None:
    square: Any = program.square
    module = square.module
    assert module.name == "native_program" and module is program.sign.module
    assert {symbol.name for symbol in module.site_functions} >= {"square", "sum_of_squares", "double"}
    assert str(module["sign"].signature) == "i8 sign(i32 x)"
    assert program.elsewhere.module.name == "native_spread" and program.elsewhere(3) == 3


def test_calls_among_them_are_probed_like_any_other() -> None:
    seen: list[int] = []
    assert program.square(2) == 4  # loads them

    def note(fp: Any, ip: int, ret_ip: int, regs: Any, data: Any) -> None:
        seen.append(regs.di)

    with fprobe.attach(["square"], entry=note):
        assert program.sum_of_squares(4) == 14
    assert seen == [0, 1, 2, 3]


def test_attributes_of_functions_are_the_modules() -> None:
    untouched: Any = program.untouched
    module = untouched.module
    assert untouched(9) == 5
    assert {symbol.name for symbol in module.site_functions} == {"untouched", "halve"}
    assert module.functions_with("notrace") == {"unwatched"}
    assert module.functions_with("nokprobe") == {"untouched", "halve"}
    assert module.functions_with("returns_twice") == frozenset()
    with pytest.raises(TypeError, match="notrace must be True or False, not 1"):
        sandbox.function(notrace=1)(lambda: None)  # type: ignore[call-overload]


def test_after_unloading_the_module_calls_are_refused() -> None:
    @sandbox.function(module="leaving")
    def same(x: u64) -> u64:
        return x

    assert same(3) == 3
    same.module.unload()
    with pytest.raises(LookupError, match="'leaving' is unloaded"):
        same(3)


def test_names_that_are_taken() -> None:
    @sandbox.function(module="taken")
    def twice(x: u64) -> u64:
        return x + x

    with pytest.raises(ValueError, match="the program 'taken' has a function 'twice' already"):
        sandbox.function(module="taken")(twice.__wrapped__)
    assert twice(4) == 8
    with pytest.raises(ValueError, match="thrice is defined too late: the program 'taken' is already loaded"):
        sandbox.function(module="taken", name="thrice")(twice.__wrapped__)
    twice.module.unload()

    other = sandbox.load("define i64 @f() { ret i64 1 }", name="occupied")
    late: Any = sandbox.function(module="occupied")(twice.__wrapped__)
    with pytest.raises(ValueError, match="a module 'occupied' is already loaded"):
        late(1)
    other.unload()
    assert isinstance(late, SandboxFunction) and late(1) == 2
    late.module.unload()


def test_what_is_not_in_the_language_is_refused_at_once() -> None:
    with pytest.raises(NativeError, match="floating point"):

        @sandbox.function(module="refused")
        def half(x: u64) -> float:
            return x / 2


hits = fprobe.Array(u64, 4)


@sandbox.function(module="with_maps")
def counting(x: u64) -> u64:
    hits[x] += 1
    return x


def test_maps_are_for_handlers() -> None:
    with pytest.raises(TypeError, match="counting uses a map, and maps are for probe handlers"):
        counting(1)
