"""Vector registers in Python handlers of kprobes, which are in the middle of functions."""

from __future__ import annotations

import pytest

import kprobes
import sandbox
from ftrace.core.handlers.floats import float_argument, float_return_value, set_float_argument

PROGRAM = "define double @tripled(double %x) noinline { %r = fmul double %x, 3.0  ret double %r }"


@pytest.mark.parametrize("flavour", ["none", "fentry"])
def test_python_handlers_read_and_change_vector_registers(flavour):
    module = sandbox.load(PROGRAM, name=f"tripled_{flavour}", flavour=flavour)
    seen = []

    def pre(p, regs):
        seen.append(float_argument(regs, 0))
        set_float_argument(regs, 0, 5.0)
        return 0

    kp = kprobes.kprobe(symbol_name="tripled", pre_handler=pre)
    rp = kprobes.kretprobe(symbol_name="tripled", handler=lambda _, regs: seen.append(float_return_value(regs)))
    kprobes.register_kprobe(kp)
    kprobes.register_kretprobe(rp)
    assert module["tripled"](2.0) == 15.0
    kprobes.unregister_kretprobe(rp)
    kprobes.unregister_kprobe(kp)
    assert module["tripled"](2.0) == 6.0
    module.unload()
    assert not kp.errors.first and not rp.errors.first
    assert seen == [2.0, 15.0]
