"""That registering on few functions takes few steps, and on many no more."""

from __future__ import annotations

import pytest
from isolation import isolated
from program_generator import generate_flat
from steps import steps

import fprobe
import sandbox
from ftrace.core.ops import ftrace_set_filter
from ftrace.core.runtime import runtime
from sandbox.loading.module import Module
from sandbox.native import i32, ptr, u64

FUNCTIONS = 600
MOST_STEPS = 650
"""Calls of functions, built-in ones too, to register and unregister: 607 with CPython 3.11. Checks of integers and claims of
objects are 85 of them, shortening the GIL's switch interval 60."""
MORE_WITH_BREAKPOINTS = 60
"""... where a site is not switched by a single store: 56."""
MOST_STEPS_TO_MOVE = 250
"""... to give a registered one another filter: 200, once 361."""
MORE_FOR_ALL = 10
"""... for all functions beyond those for one."""


@fprobe.native
def enter(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    data[0] = ip
    return 0


@fprobe.native
def leave(fp, ip, ret_ip, regs, data: ptr[u64]):
    pass


def flat() -> Module:
    return sandbox.load(generate_flat(FUNCTIONS).ir, name="flat")


def steps_on(fp: fprobe.fprobe, pattern: str) -> int:
    """Of registering and unregistering."""

    def cycle() -> None:
        fprobe.register_fprobe(fp, pattern)
        fprobe.unregister_fprobe(fp)

    cycle()
    return steps(cycle)


@pytest.mark.stress
@isolated
def test_registering_on_one_function_takes_few_steps_and_on_all_no_more():
    """FP-10, FP-43: no check is left out, and none is made twice."""
    name = flat().site_functions[3].name
    fp = fprobe.fprobe(enter, leave, entry_data_size=8)
    one, everything = steps_on(fp, name), steps_on(fp, "*")
    assert one < MOST_STEPS + (MORE_WITH_BREAKPOINTS if runtime().force_breakpoints else 0)
    assert everything < one + MORE_FOR_ALL


@isolated
def test_another_filter_takes_few_steps():
    """FT-27: what is left and what is new is patched at once."""
    names = [symbol.name for symbol in flat().site_functions]
    fp = fprobe.fprobe(enter, leave, entry_data_size=8)
    fprobe.register_fprobe(fp, names[3])
    for name in names[4:6]:
        taken = steps(lambda name=name: ftrace_set_filter(fp.ops, name, reset=True))
    assert [location.name for location in fp.ops.selection().each()] == names[5:6]
    fprobe.unregister_fprobe(fp)
    assert taken < MOST_STEPS_TO_MOVE
