"""The cases of the kernel's lib/test_kprobes.c, each under its id: UK-1..7 (docs/conformance.md)."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

import sandbox
from kprobes.registration import (
    kprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    register_kretprobes,
    unregister_kprobe,
    unregister_kprobes,
    unregister_kretprobe,
    unregister_kretprobes,
)
from kprobes.return_probe import kretprobe
from sandbox.threads.contexts import preemptible

DIV_FACTOR = 3
# Each recording function notes where it returns to when it is called for the first time, unprobed.
TARGETS = """
define i32 @kprobe_target(i32 %v) noinline { %r = udiv i32 %v, 3  ret i32 %r }
define i32 @kprobe_target2(i32 %v) noinline { %q = udiv i32 %v, 3  %r = add i32 %q, 1  ret i32 %r }
define i32 @kprobe_recursed_target(i32 %v) noinline { %r = udiv i32 %v, 3  ret i32 %r }

declare ptr @llvm.returnaddress(i32)
@target_return_address = global [2 x ptr] zeroinitializer
define ptr @kprobe_stacktrace_internal_target() noinline {
  %here = call ptr @llvm.returnaddress(i32 0)
  %noted = call ptr @note(i64 0, ptr %here)
  ret ptr %noted
}
define ptr @kprobe_stacktrace_target() noinline {
  %here = call ptr @llvm.returnaddress(i32 0)
  %noted = call ptr @note(i64 1, ptr %here)
  %ignored = notail call ptr @kprobe_stacktrace_internal_target()
  ret ptr %noted
}
define ptr @kprobe_stacktrace_driver() noinline {
  %ignored = notail call ptr @kprobe_stacktrace_target()
  %here = call ptr @llvm.returnaddress(i32 0)
  ret ptr %here
}
define internal ptr @note(i64 %n, ptr %here) noinline {
  %slot = getelementptr [2 x ptr], ptr @target_return_address, i64 0, i64 %n
  %known = load ptr, ptr %slot
  %first = icmp eq ptr %known, null
  br i1 %first, label %keep, label %done
keep:
  store ptr %here, ptr %slot
  br label %done
done:
  %value = load ptr, ptr %slot
  ret ptr %value
}
"""


class Suite:
    """A loaded program, the number it is called with, and what the handlers note and expect."""

    def __init__(self, program: Any, rand1: int) -> None:
        self.program, self.rand1 = program, rand1
        self.preh_val = self.posth_val = self.krph_val = 0
        self.quotient = rand1 // DIV_FACTOR
        self.probes: list[Any] = []

    def recursed(self) -> int:
        return self.program["kprobe_recursed_target"](self.rand1) & 0xFFFF_FFFF

    def call(self, name: str) -> None:
        """Zero the values and call a target."""
        self.preh_val = self.posth_val = self.krph_val = 0
        more = 1 if name.endswith("2") else 0
        assert self.program[name](self.rand1) & 0xFFFF_FFFF == self.quotient + more

    def kprobe(self, name: str, more: int = 0) -> kprobe:
        def pre(p, regs):
            assert not preemptible()
            self.preh_val = self.recursed() + more
            return 0

        def post(p, regs, flags):
            assert not preemptible()
            assert self.preh_val == self.recursed() + more
            self.posth_val = self.preh_val + DIV_FACTOR

        self.probes.append(kprobe(symbol_name=name, pre_handler=pre, post_handler=post))
        return self.probes[-1]

    def kretprobe(self, name: str, more: int = 0) -> kretprobe:
        def entry(ri, regs):
            assert not preemptible()
            self.krph_val = self.quotient
            return 0

        def handler(ri, regs):
            assert regs.ax & 0xFFFF_FFFF == self.quotient + more
            assert self.krph_val
            self.krph_val = self.rand1
            return 0

        self.probes.append(kretprobe(symbol_name=name, handler=handler, entry_handler=entry))
        return self.probes[-1]

    def check(self) -> None:
        """What handlers found wrong is raised here."""
        for probe in self.probes:
            if probe.errors.first:
                raise probe.errors.first


@pytest.fixture(scope="module", params=["fentry", "none"])
def program(request):
    """With stubs, so that entries are ftrace locations, and without, so that they are breakpoints."""
    module = sandbox.load(TARGETS, name=f"kunit_kprobes_{request.param}", flavour=request.param)
    yield module
    module.unload()


@pytest.fixture(params=[4, 5, 0x1234_5678, 2**32 - 1])
def suite(program, request):
    made = Suite(program, request.param)
    yield made
    made.check()


def test_uk1_kprobe(suite):
    kp = suite.kprobe("kprobe_target")
    register_kprobe(kp)
    suite.call("kprobe_target")
    unregister_kprobe(kp)
    assert suite.preh_val and suite.posth_val


def test_uk2_kprobes(suite):
    both = [suite.kprobe("kprobe_target"), suite.kprobe("kprobe_target2", 1)]
    register_kprobes(both, 2)
    for name in ("kprobe_target", "kprobe_target2"):
        suite.call(name)
        assert suite.preh_val and suite.posth_val
    unregister_kprobes(both, 2)


def test_uk3_kprobe_missed(suite):
    """The handlers call the probed function: once each is missed and counted."""
    kp = suite.kprobe("kprobe_recursed_target")
    register_kprobe(kp)
    suite.call("kprobe_recursed_target")
    assert kp.nmissed == 2
    assert suite.preh_val and suite.posth_val
    unregister_kprobe(kp)


def test_uk4_kretprobe(suite):
    rp = suite.kretprobe("kprobe_target")
    register_kretprobe(rp)
    suite.call("kprobe_target")
    unregister_kretprobe(rp)
    assert suite.krph_val == suite.rand1


def test_uk5_kretprobes(suite):
    both = [suite.kretprobe("kprobe_target"), suite.kretprobe("kprobe_target2", 1)]
    register_kretprobes(both, 2)
    for name in ("kprobe_target", "kprobe_target2"):
        suite.call(name)
        assert suite.krph_val == suite.rand1
    unregister_kretprobes(both, 2)


class Traced:
    """Return probes on functions that know their return addresses, and the stack traces taken in them."""

    def __init__(self, program: Any) -> None:
        self.driver = program["kprobe_stacktrace_driver"]
        self.before = self.driver()
        (slots,) = (s for s in program.data if s.name == "target_return_address")
        self.internal, self.outer = (ctypes.c_uint64 * 2).from_address(slots.address)
        self.traces: dict[str, list[int]] = {}
        self.from_regs: dict[str, list[int]] = {}
        self.results: dict[str, int] = {}

    def kretprobe(self, name: str) -> kretprobe:
        from ftrace.core.unwind.stacktrace import stack_trace_save, stack_trace_save_regs

        def handler(ri, regs):
            assert not preemptible()
            self.traces[name] = stack_trace_save(16)
            self.from_regs[name] = stack_trace_save_regs(regs, 16)
            self.results[name] = regs.ax
            return 0

        return kretprobe(symbol_name=name, handler=handler)


def test_uk6_stacktrace_on_kretprobe(program):
    """A stack trace in the return handler has the real return address in place of the trampoline's (RH-19)."""
    traced = Traced(program)
    rp = traced.kretprobe("kprobe_stacktrace_target")
    register_kretprobe(rp)
    assert traced.driver() == traced.before
    unregister_kretprobe(rp)
    assert not rp.errors.first
    assert traced.results["kprobe_stacktrace_target"] == traced.outer
    assert traced.outer in traced.traces["kprobe_stacktrace_target"]
    assert traced.from_regs["kprobe_stacktrace_target"][0] == traced.outer


def test_uk7_stacktrace_on_nested_kretprobe(program):
    traced = Traced(program)
    names = ("kprobe_stacktrace_target", "kprobe_stacktrace_internal_target")
    both = [traced.kretprobe(name) for name in names]
    register_kretprobes(both, 2)
    assert traced.driver() == traced.before
    unregister_kretprobes(both, 2)
    assert not any(rp.errors.first for rp in both)
    assert traced.results["kprobe_stacktrace_internal_target"] == traced.internal
    for traces in (traced.traces, traced.from_regs):
        assert traces["kprobe_stacktrace_internal_target"][:2] == [traced.internal, traced.outer]
