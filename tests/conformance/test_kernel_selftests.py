"""ftrace's boot self-tests (kernel/trace/trace_selftest.c), each under its id: TS-1..8 (docs/conformance.md)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from programs import basic

import sandbox
from ftrace.core.filters.set_ftrace_filter import FilterFile
from ftrace.core.ops import (
    ftrace_get_regs,
    ftrace_ops,
    ftrace_ops_set_global_filter,
    ftrace_set_filter,
    register_ftrace_function,
    unregister_ftrace_function,
)
from ftrace.core.ops_flags import FTRACE_OPS_FL_RECURSION, FTRACE_OPS_FL_SAVE_REGS

F1, F2 = "trace_selftest_dynamic_test_func", "trace_selftest_dynamic_test_func2"
FUNCTIONS = f"define void @{F1}() noinline {{ ret void }}\ndefine void @{F2}() noinline {{ ret void }}\n"


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(FUNCTIONS, name="selftest")
    yield module
    module.unload()


@pytest.fixture
def made():
    """Every ops of a test; those still registered at its end are unregistered."""
    listed: list[ftrace_ops] = []
    yield listed
    for ops in listed:
        if ops.enabled:
            unregister_ftrace_function(ops)


class Counted:
    """An ops that counts its calls."""

    def __init__(self, made, *filters: tuple[str, bool]) -> None:
        self.count = 0
        self.ops = ftrace_ops(self._hit)
        made.append(self.ops)
        for pattern, reset in filters:
            ftrace_set_filter(self.ops, pattern, reset)

    def _hit(self, ip, parent_ip, ops, fregs):
        self.count += 1


def counts(*counted: Counted) -> list[int]:
    return [one.count for one in counted]


def registered(ops: ftrace_ops) -> ftrace_ops:
    register_ftrace_function(ops)
    return ops


@pytest.fixture(params=[False, True], ids=["filtered", "with_global"])
def five(request, program, made):
    """What TS-1..4 run through: three filtered ops, in the second round one for everything, and one that comes later."""
    first = Counted(made, (f"*{F1}", True))
    second = Counted(made, (f"*{F2}", True))
    third = Counted(made, (f"*{F1}", True), (f"*{F2}", False))
    everything = Counted(made) if request.param else None
    for one in (first, second, third, everything):
        if one:
            registered(one.ops)
    return first, second, third, everything, Counted(made)


def test_ts1_ts2_ts3_ts4_several_ops_on_two_functions(program, five):
    *three, everything, late = five
    call1, call2 = program[F1], program[F2]
    call1()
    assert counts(*three) == [1, 0, 1] and (everything is None or everything.count > 0)
    call2()
    assert counts(*three) == [1, 1, 2]
    registered(late.ops)
    call1()
    assert counts(*three) == [2, 1, 3] and late.count > 0
    call2()
    assert counts(*three) == [2, 2, 4]
    ftrace_set_filter(three[2].ops, f"!{F1}")
    call1()
    assert counts(*three) == [3, 2, 4]
    call2()
    assert counts(*three) == [3, 3, 5]
    listed = [one for one in five if one]
    for one in listed:
        unregister_ftrace_function(one.ops)
        one.count = 0
    call1()
    call1()
    assert counts(*listed) == [0] * len(listed)


def test_ts5_a_filter_of_one_function_records_that_one_only(program, made):
    """With the function in the global filter, as the tracers share it."""
    others = basic()
    only = Counted(made)
    ftrace_ops_set_global_filter(only.ops)
    with FilterFile() as file:
        file.write_all(F1)
    registered(only.ops)
    others["loop"](10)
    program[F2]()
    assert only.count == 0
    program[F1]()
    assert only.count == 1
    unregister_ftrace_function(only.ops)
    FilterFile().close()
    others.unload()


def test_ts6_recursion_is_broken_for_a_callback_that_does_not_guard_itself(program, made):
    count = 0

    def callback(ip, parent_ip, ops, fregs):
        nonlocal count
        if count < 10:
            count += 1
            program[F1]()

    made.append(ftrace_ops(callback, FTRACE_OPS_FL_RECURSION))
    ftrace_set_filter(made[0], F1, True)
    registered(made[0])
    program[F1]()
    assert count == 2


def test_ts7_a_callback_that_guards_itself_is_called_directly(program, made):
    count = 1

    def callback(ip, parent_ip, ops, fregs):
        nonlocal count
        before, count = count, count + 1
        if not before:
            program[F1]()

    made.append(ftrace_ops(callback))
    ftrace_set_filter(made[0], F1, True)
    registered(made[0])
    program[F1]()
    assert count == 2


def test_ts8_registers_for_those_who_ask(program, made):
    seen = []
    made.append(ftrace_ops(lambda ip, parent, ops, fregs: seen.append(ftrace_get_regs(fregs)), FTRACE_OPS_FL_SAVE_REGS))
    ftrace_set_filter(made[0], F1, True)
    registered(made[0])
    program[F1]()
    assert len(seen) == 1 and seen[0] is not None
