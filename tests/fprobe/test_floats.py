"""Floating-point arguments and results: read and changed by Python and native handlers."""

from __future__ import annotations

import struct

import pytest
from isolation import isolated

import fprobe
import sandbox
from ftrace.core.handlers.floats import (
    float_argument,
    float_return_value,
    regs_get_xmm,
    regs_set_xmm,
    set_float_argument,
    set_float_return_value,
)
from sandbox.native import i32, u64, void

PROGRAM = """
define double @scaled(i64 %n, double %a, float %b, double %c) noinline {
  %wide = fpext float %b to double
  %ab = fmul double %a, %wide
  %r = fadd double %ab, %c
  ret double %r
}
define float @halved(float %x) noinline { %r = fmul float %x, 0.5  ret float %r }
define x86_fp80 @long_half(double %x) noinline {
  %half = fmul double %x, 0.5
  %r = fpext double %half to x86_fp80
  ret x86_fp80 %r
}
define double @through_x87(double %x) noinline {
  %long = call x86_fp80 @long_half(double %x)
  %r = fptrunc x86_fp80 %long to double
  ret double %r
}
"""


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(PROGRAM, name="floats")
    yield module
    module.unload()


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def checked(probe):
    """What a handler found wrong."""
    if probe.fp.errors.first:
        raise probe.fp.errors.first


def test_python_handlers_read_arguments_and_result(program):
    seen = []

    def entry(fp, ip, ret_ip, regs, data):
        seen.append((float_argument(regs, 0), float_argument(regs, 1, 32), float_argument(regs, 2)))
        return 0

    def exit_(fp, ip, ret_ip, regs, data):
        seen.append(float_return_value(regs))

    with fprobe.attach("scaled", entry=entry, exit=exit_) as probe:
        assert program["scaled"](9, 1.5, 0.25, 4.0) == 4.375
    checked(probe)
    assert seen == [(1.5, 0.25, 4.0), 4.375]


def test_python_handlers_change_them(program):
    def entry(fp, ip, ret_ip, regs, data):
        set_float_argument(regs, 2, 100.0)
        return 0

    with fprobe.attach("scaled", entry=entry):
        assert program["scaled"](9, 1.5, 0.25, 4.0) == 100.375
    with fprobe.attach("halved", exit=lambda *hit: set_float_return_value(hit[3], 7.5, 32)):
        assert program["halved"](3.0) == 7.5
    assert program["halved"](3.0) == 1.5


def test_x87_in_use_all_registers_are_kept_elsewhere_and_can_still_be_read(program):
    """A long double is returned: the handler's callers keep the whole state."""
    seen = []

    def exit_(fp, ip, ret_ip, regs, data):
        seen.append(float_argument(regs, 0))
        set_float_argument(regs, 7, 1.0)

    with fprobe.attach("long_half", exit=exit_) as probe:
        assert program["through_x87"](5.0) == 2.5
    checked(probe)
    assert len(seen) == 1


@isolated
def test_native_handlers_read_and_change_them():
    from ftrace.core.maps import Array

    module = sandbox.load(PROGRAM, name="floats")
    found = Array(u64, 2)

    @fprobe.native
    def entry(fp, ip, ret_ip, regs, data) -> i32:
        found[0] = regs_get_xmm(regs, 2)
        regs_set_xmm(regs, 2, 0x4059_0000_0000_0000)  # 100.0
        return 0

    @fprobe.native
    def exit_(fp, ip, ret_ip, regs, data) -> void:
        found[1] = regs_get_xmm(regs, 0)

    with fprobe.attach("scaled", entry=entry, exit=exit_):
        assert module["scaled"](9, 1.5, 0.25, 4.0) == 100.375
    assert [found[0], found[1]] == [bits(4.0), bits(100.375)]


def test_a_handler_in_a_handler_finds_the_inner_calls(program):
    seen = []

    def inner(fp, ip, ret_ip, regs, data):
        seen.append(float_argument(regs, 0, 32))
        return 0

    def outer(fp, ip, ret_ip, regs, data):
        program["halved"](8.0)
        seen.append(float_argument(regs, 0))
        return 0

    with fprobe.attach("halved", entry=inner), fprobe.attach("scaled", entry=outer) as probe:
        program["scaled"](0, 2.0, 1.0, 0.0)
    checked(probe)
    assert seen == [8.0, 2.0]


def test_bad_registers_and_places_are_named(program):
    with pytest.raises(RuntimeError, match="only while a handler runs"):
        float_argument(None, 0)
    with pytest.raises(ValueError, match="n is 8; arguments and results are in vector registers 0 to 7"):
        float_argument(None, 8)
