"""What handlers read and write by the kernel's names, from Python and natively: FP-6, FP-9."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from programs import basic, site_of

import fprobe
from ftrace.core.handlers.registers import (
    instruction_pointer,
    instruction_pointer_set,
    kernel_stack_pointer,
    regs_get_kernel_argument,
    regs_get_kernel_stack_nth,
    regs_return_value,
    regs_set_return_value,
)
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import u64

values = fprobe.Array(u64, 16)


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@fprobe.native
def note_arguments(fp, entry_ip, ret_ip, regs, entry_data):
    for n in range(9):
        values[n] = regs_get_kernel_argument(regs, n)
    values[9] = regs_get_kernel_stack_nth(regs, 0)
    values[10] = ret_ip
    values[11] = instruction_pointer(regs)
    values[12] = kernel_stack_pointer(regs)


@fprobe.native
def note_result_and_change_it(fp, entry_ip, ret_ip, regs, entry_data):
    values[13] = regs_return_value(regs)
    regs_set_return_value(regs, 7)


@fprobe.native
def skip_to_the_body(fp, entry_ip, ret_ip, regs, entry_data):
    values[14] = kernel_stack_pointer(regs)
    instruction_pointer_set(regs, instruction_pointer(regs))


def test_fp6_fp9_native_handlers(program):
    with fprobe.attach("nine", entry=note_arguments, exit=note_result_and_change_it):
        assert program["nine"](*range(1, 10)) == 7
    noted = [values[i] for i in range(14)]
    assert noted[:9] == list(range(1, 10))
    assert noted[9] == noted[10] and noted[11] == site_of(program, "nine") + 5 and noted[12] % 16 == 8
    assert noted[13] == program["nine"](*range(1, 10))
    with fprobe.attach("leaf", entry=skip_to_the_body):
        assert program["leaf"](1) == 2


def test_fp6_fp9_python_handlers(program):
    seen = {}

    def entry(fp, ip, ret_ip, regs, data):
        seen["arguments"] = [regs_get_kernel_argument(regs, n) for n in range(9)]
        seen["slot"] = regs_get_kernel_stack_nth(regs, 0) == ret_ip
        seen["ip"] = instruction_pointer(regs) - ip
        seen["aligned"] = kernel_stack_pointer(regs) % 16

    def exit_(fp, ip, ret_ip, regs, data):
        seen["result"] = regs_return_value(regs)
        regs_set_return_value(regs, -7)

    with fprobe.attach("nine", entry=entry, exit=exit_) as probe:
        assert program["nine"](*range(1, 10)) == -7
    assert probe.fp.errors.first is None
    result = program["nine"](*range(1, 10))
    assert seen == {"arguments": list(range(1, 10)), "slot": True, "ip": 5, "aligned": 8, "result": result}


def test_fp9_python_handlers_redirect(program):
    target = program.symbol("other").address
    with fprobe.attach("leaf", entry=lambda fp, ip, ret, regs, data: instruction_pointer_set(regs, target)):
        assert program["leaf"](1) == 3


def test_what_cannot_be_read_is_zero():
    regs = pt_regs.ctypes()
    regs.sp = 0x10
    assert regs_get_kernel_stack_nth(regs, 3) == 0 and regs_get_kernel_argument(regs, 6) == 0
    regs.sp = 2**64 - 8
    assert regs_get_kernel_stack_nth(regs, 1) == 0
