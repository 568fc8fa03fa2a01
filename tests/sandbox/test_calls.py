"""Calls from Python: through ctypes where it calls as LLVM does, through compiled thunks everywhere else."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest

from sandbox import load
from sandbox.loading.calls import is_direct

IR = """
%P = type { i32, double }
%Big = type { i64, i64, i64, i8 }
declare void @llvm.va_start.p0(ptr)
declare i32 @usleep(i32)

define %P @make(i32 %a, double %b) {
  %x = insertvalue %P poison, i32 %a, 0
  %y = insertvalue %P %x, double %b, 1
  ret %P %y
}
define double @sum(%P %p) {
  %a = extractvalue %P %p, 0
  %b = extractvalue %P %p, 1
  %c = sitofp i32 %a to double
  %r = fadd double %b, %c
  ret double %r
}
define void @fill(ptr sret(%Big) align 8 %out, i64 %x) {
  store %Big zeroinitializer, ptr %out
  store i64 %x, ptr %out
  %p = getelementptr %Big, ptr %out, i32 0, i32 3
  store i8 -7, ptr %p
  ret void
}
define i64 @third(i64 %k, ptr byval(%Big) align 32 %b) {
  %p = getelementptr %Big, ptr %b, i32 0, i32 2
  store i64 %k, ptr %b
  %v = load i64, ptr %p
  ret i64 %v
}
define fastcc i64 @difference(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h) {
  %r = sub i64 %g, %h
  ret i64 %r
}
define <4 x float> @add4(<4 x float> %a, <4 x float> %b) {
  %r = fadd <4 x float> %a, %b
  ret <4 x float> %r
}
define i128 @thrice(i128 %a) {
  %r = mul i128 %a, 3
  ret i128 %r
}
define { i64, i64, i64 } @three(i64 %a) {
  %x = insertvalue { i64, i64, i64 } { i64 0, i64 2, i64 3 }, i64 %a, 0
  ret { i64, i64, i64 } %x
}
define i64 @variadic(i64 %n, ...) {
  %l = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %l)
  %v = va_arg ptr %l, i64
  %d = va_arg ptr %l, double
  %e = fptosi double %d to i64
  %r = add i64 %v, %e
  ret i64 %r
}
define double @copied_variadic(ptr byval(%P) %p, ...) {
  %l = alloca [24 x i8], align 8
  call void @llvm.va_start.p0(ptr %l)
  %d = va_arg ptr %l, double
  %s = va_arg ptr %l, ptr
  %c = load i8, ptr %s
  %e = uitofp i8 %c to double
  %r = fadd double %d, %e
  ret double %r
}
define i64 @chained(ptr nest %p, i64 %a) {
  %r = ptrtoint ptr %p to i64
  %s = add i64 %r, %a
  ret i64 %s
}
define i8 @same8(i8 signext %a) { ret i8 %a }
define i1 @not(i1 zeroext %a) {
  %r = xor i1 %a, true
  ret i1 %r
}
define i24 @odd(i24 %a) {
  %r = add i24 %a, 1
  ret i24 %r
}
define half @half(half %a) { ret half %a }
define x86_fp80 @long_sum(x86_fp80 %a, x86_fp80 %b) {
  %r = fadd x86_fp80 %a, %b
  ret x86_fp80 %r
}
define float @same_float(float %a) { ret float %a }
define ptr @same_pointer(ptr %p) { ret ptr %p }
define i8 @first_byte(ptr %p) {
  %v = load i8, ptr %p
  ret i8 %v
}
define void @poke(ptr %p, i8 %v) {
  store i8 %v, ptr %p
  ret void
}
define void @nothing() { ret void }
define i64 @eight(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, double %h) {
  %i = fptosi double %h to i64
  %r = sub i64 %i, %g
  ret i64 %r
}
define void @sleep(i32 %us) {
  %r = call i32 @usleep(i32 %us)
  ret void
}
"""


@pytest.fixture(scope="module")
def program():
    module = load(IR, name="calls")
    yield module
    module.unload()


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("make", (3, 2.5), (3, 2.5)),
        ("sum", ((3, 2.5),), 5.5),
        ("sum", ({"_1": 2.5},), 2.5),
        ("fill", (99,), (99, 0, 0, -7)),
        ("third", (1, (10, 20, 30, 4)), 30),
        ("difference", (1, 2, 3, 4, 5, 6, 70, 8), 62),
        ("add4", ((1, 2, 3, 4), [0.5] * 4), (1.5, 2.5, 3.5, 4.5)),
        ("thrice", (1 << 100,), 3 << 100),
        ("thrice", (-1,), -3),
        ("three", (1,), (1, 2, 3)),
        ("variadic", (0, 5, 7.9), 12),
        ("copied_variadic", ((1, 1.0), 0.5, "A"), 65.5),
        ("chained", (40, 2), 42),
        ("same8", (-3,), -3),
        ("same8", (253,), -3),
        ("not", (True,), False),
        ("not", (0,), True),
        ("odd", (0x7FFFFF,), -0x800000),
        ("half", (1.5,), 1.5),
        ("long_sum", (1.25, 2), 3.25),
        ("same_float", (0.5,), 0.5),
        ("same_pointer", (2**64 - 1,), 2**64 - 1),
        ("same_pointer", (None,), 0),
        ("nothing", (), None),
        ("eight", (1, 2, 3, 4, 5, 6, 7, 50.0), 43),
    ],
)
def test_arguments_and_results(program, name, arguments, expected):
    result = program[name](*arguments)
    assert result == expected
    assert type(result) is type(expected) or isinstance(expected, tuple)


@pytest.mark.parametrize(
    "value",
    [
        b"A",
        "A",
        bytearray(b"A"),
        memoryview(bytearray(b"A")),
        ctypes.create_string_buffer(b"A"),
        ctypes.c_char_p(b"A"),
        ctypes.pointer(ctypes.c_char(b"A")),
        ctypes.c_uint8(65),
        (ctypes.c_uint8 * 3)(65, 66, 67),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_stands_for_an_address(program, value):
    assert program["first_byte"](value) == 65


def test_a_function_stands_for_its_address(program):
    assert program["same_pointer"](program["nothing"]) == program["nothing"].address


def test_a_writable_buffer_is_written_in_place(program):
    for room in (bytearray(2), (ctypes.c_char * 2)(), memoryview(bytearray(2))):
        program["poke"](room, 77)
        assert bytes(room) == b"M\0"


def test_what_is_passed_by_value_is_not_changed(program):
    given = (ctypes.c_int64 * 4)(1, 2, 3, 4)
    assert program["third"](5, given) == 3
    assert list(given) == [1, 2, 3, 4]


def test_which_calls_ctypes_makes(program):
    direct = {f.name for f in program.functions if is_direct(program[f.name].signature)}
    assert direct == {
        "variadic", "same8", "not", "long_sum", "same_float", "same_pointer", "first_byte", "poke", "nothing", "eight",
        "sleep",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("make", ("x", 1.0), TypeError, r"^make\(\) argument 1 \(a\): expected an integer for i32, got 'x'"),
        ("make", (1, "y"), TypeError, r"^make\(\) argument 2 \(b\): expected a number for double, got 'y'"),
        ("make", (1 << 32, 1.0), OverflowError, r"^make\(\) argument 1 \(a\): 4294967296 is out of range for i32"),
        ("make", (1,), TypeError, r"^make\(\) takes 2 arguments, not 1 \(1\): %P make\(i32 a, double b\)"),
        ("nothing", (1, 2), TypeError, r"^nothing\(\) takes 0 arguments, not 2 \(1, 2\)"),
        ("variadic", (), TypeError, r"^variadic\(\) takes at least 1 argument, not 0"),
        ("variadic", (1, {}), TypeError, r"^variadic\(\) argument 2: expected an address.* got {}"),
        ("sum", (3,), TypeError, r"^sum\(\) argument 1 \(p\): expected 2 values for %P, got 3"),
        ("sum", ((1, "x"),), TypeError, r"^sum\(\) argument 1 \(p\)\._1: expected a number"),
        ("first_byte", (1.5,), TypeError, r"^first_byte\(\) argument 1 \(p\): expected an address.* got 1.5"),
        ("first_byte", (1 << 64,), OverflowError, r"^first_byte\(\) argument 1 \(p\): 18446744073709551616 is out"),
        ("same8", (300,), OverflowError, r"^same8\(\) argument 1 \(a\): 300 is out of range for i8 \(-128..255\)"),
        ("not", (2,), OverflowError, r"^not\(\) argument 1 \(a\): 2 is out of range for i1"),
        ("add4", ((1, 2), (1, 2, 3, 4)), TypeError, r"^add4\(\) argument 1 \(a\): expected 4 values for <4 x float>"),
    ],
)
def test_what_does_not_fit_is_named(program, name, arguments, error, message):
    with pytest.raises(error, match=message):
        program[name](*arguments)


def test_an_interrupt_handler_cannot_be_called():
    program = load("define x86_intrcc void @irq(ptr byval(i64) %frame) { ret void }", name="irq")
    with pytest.raises(TypeError, match=r"irq\(\) is an interrupt handler \(x86_intrcc\)"):
        program["irq"](0)
    program.unload()


def test_the_gil_is_released_in_both_kinds_of_calls(program):
    from sandbox.abi.layout import encode
    from sandbox.loading import thunks

    signature = program["sleep"].signature

    def through_thunk():
        value = encode(300_000, signature.parameters[0].type, "us")
        thunks.call(signature, program["sleep"].address, [value], [])

    for call in (lambda: program["sleep"](300_000), through_thunk):
        thread = threading.Thread(target=call)
        thread.start()
        turns = 0
        while thread.is_alive():
            turns += 1
            time.sleep(0.001)
        assert turns > 10
        thread.join()


def test_many_threads_call_at_once(program):
    wrong: list[int] = []

    def calls(seed):
        wrong.extend(i for i in range(seed, seed + 500) if program["difference"](0, 0, 0, 0, 0, 0, i, 1) != i - 1)

    threads = [threading.Thread(target=calls, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_bare_pointer_is_a_ctypes_function(program):
    assert program["eight"].pointer(0, 0, 0, 0, 0, 0, 1, 3.0) == 2
    with pytest.raises(TypeError, match="ctypes cannot call %P make"):
        _ = program["make"].pointer


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        ("make", ["0x10", "2"], [16, 2.0]),
        ("make", ["-1", "1e3"], [-1, 1000.0]),
        ("same8", ["'a'"], [97]),
        ("not", ["true"], [1]),
        ("eight", ["010", "1_000", "0b11", "0o17", "5", "6", "7", "nan"], None),
        ("first_byte", ["hello"], ["hello"]),
        ("first_byte", ["0x1000"], [0x1000]),
        ("sum", ["(1, 2.5)"], [(1, 2.5)]),
        ("third", ["1", "[1, 2, 3, 4]"], [1, [1, 2, 3, 4]]),
        ("fill", ["7"], [7]),
        ("variadic", ["1", "2", "2.5", "word"], [1, 2, 2.5, "word"]),
        ("nothing", [], []),
    ],
)
def test_arguments_written_as_words(program, name, words, expected):
    parsed = program[name].parse_arguments(words)
    if expected is None:
        assert parsed[:6] == [10, 1000, 3, 15, 5, 6] and parsed[7] != parsed[7]
    else:
        assert parsed == expected
        assert [type(value) for value in parsed] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("name", "words", "error", "message"),
    [
        ("make", ["x", "1"], ValueError, r"^make\(\) argument 1 \(a\): expected an integer for i32, got 'x'"),
        ("make", ["1", "x"], ValueError, r"^make\(\) argument 2 \(b\): expected a number for double, got 'x'"),
        ("make", ["1"], TypeError, r"^make\(\) takes 2 arguments, not 1 \('1'\)"),
        ("sum", ["(1"], ValueError, r"^sum\(\) argument 1 \(p\): expected a value for %P such as '\(1, 2\)', got"),
    ],
)
def test_words_that_do_not_fit_are_named(program, name, words, error, message):
    with pytest.raises(error, match=message):
        program[name].parse_arguments(words)


def test_a_chained_call_keeps_its_chain_when_calls_are_guarded():
    """A guard uses r10, where a `nest` parameter is passed: such calls are not guarded."""
    from ftrace.core.tracer import tracer

    source = """define i64 @chained_guarded(ptr nest %chain, i64 %a) {
      %c = load i64, ptr %chain
      %r = add i64 %c, %a
      ret i64 %r
    }"""
    tracer()
    module = load(source, name="chained-guarded")
    try:
        assert module["chained_guarded"](ctypes.c_int64(40), 2) == 42
    finally:
        module.unload()
