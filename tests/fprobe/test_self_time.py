"""Stat with self and CPU time: time inside calls that returned is theirs, whatever else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from isolation import isolated

import fprobe
import sandbox

SOURCE = r"""
#include <setjmp.h>
#include <time.h>
#include <ucontext.h>
#define KEEP __attribute__((noinline))
static jmp_buf back;
static ucontext_t here, there;
static char stack[65536];
static long cpu(void) {
  struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); return t.tv_sec * 1000000000L + t.tv_nsec;
}
KEEP int leaf(int n) { volatile int sum = 0; for (int i = 0; i < n; i++) sum += i; return sum; }
KEEP int leaves(int n) { return leaf(n) + leaf(n); }
KEEP int nested(int n) { return leaves(n) + leaf(n); }
KEEP void jumps(int n) { leaf(n); longjmp(back, 1); }
KEEP int is_jumped_to(int n) { leaf(n); if (!setjmp(back)) jumps(n); return leaf(n); }
KEEP void on_other_stack(void) { leaf(1000); swapcontext(&there, &here); }
KEEP int goes_there(void) { return swapcontext(&here, &there); }
KEEP int switches(int n) {
  getcontext(&there);
  there.uc_stack.ss_sp = stack; there.uc_stack.ss_size = sizeof stack; there.uc_link = &here;
  makecontext(&there, on_other_stack, 0);
  goes_there(); leaf(n); goes_there();
  return leaf(n);
}
KEEP void naps(void) { struct timespec t = {0, 20000000}; nanosleep(&t, 0); }
KEEP void works(void) { long end = cpu() + 5000000; while (cpu() < end); }
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("self") / "self.c"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture(scope="module")
def program(source):
    module = sandbox.load(Path(source))
    yield module
    module.unload()


def counted(program, names, call, *arguments, **options):
    """Function -> its statistics."""
    with fprobe.attach(names, action=fprobe.Stat(**{"self_time": True} | options)) as probe:
        program[call](*arguments)
        found = probe.action.functions()
    return {name: found[program[name].address] for name in names if program[name].address in found}


def near(nanoseconds):
    return pytest.approx(nanoseconds, rel=1e-9, abs=1e-3)


def test_self_is_the_total_without_the_calls_inside(program):
    found = counted(program, ["leaf", "leaves", "nested"], "nested", 100)
    assert found["leaf"].self_ns == near(found["leaf"].total_ns)
    assert found["leaves"].self_ns < found["leaves"].total_ns
    assert sum(stat.self_ns for stat in found.values()) == near(found["nested"].total_ns)


def test_functions_that_are_not_counted_are_their_callers_time(program):
    found = counted(program, ["leaf", "nested"], "nested", 100)
    assert found["nested"].self_ns == near(found["nested"].total_ns - found["leaf"].total_ns)


def test_calls_by_caller_have_self_time_too(program):
    with fprobe.attach(["leaf", "leaves"], action=fprobe.Stat(by="caller", self_time=True)) as probe:
        program["leaves"](100)
        rows = probe.action.origins()
    assert len(rows) == 3
    assert sum(row.self_ns for row in rows) == near(max(row.total_ns for row in rows))


@isolated  # what longjmp leaves on the shadow stack stays there until the thread's next hit
def test_a_call_that_longjmp_ends_is_its_callers_time_but_for_what_returned_inside(source):
    found = counted(sandbox.load(Path(source)), ["leaf", "jumps", "is_jumped_to"], "is_jumped_to", 1000)
    assert (found["leaf"].returned, found["jumps"].hits, found["jumps"].returned) == (3, 1, 0)
    assert found["jumps"].self_ns == found["jumps"].total_ns == 0
    assert found["is_jumped_to"].self_ns == near(found["is_jumped_to"].total_ns - found["leaf"].total_ns)


@isolated
def test_on_several_stacks_self_is_never_more_than_the_total(source):
    names = ["leaf", "goes_there", "on_other_stack", "switches"]
    found = counted(sandbox.load(Path(source)), names, "switches", 1000)
    assert found["goes_there"].returned == 2 and found["leaf"].returned == 3
    assert all(0 <= stat.self_ns <= stat.total_ns for stat in found.values())
    assert found["leaf"].self_ns == near(found["leaf"].total_ns)


def test_cpu_time_is_without_sleep(program):
    found = counted(program, ["naps", "works"], "naps", cpu=True)["naps"]
    assert found.total_ns >= 20e6 and found.cpu_ns < 10e6
    found = counted(program, ["naps", "works"], "works", cpu=True)["works"]
    assert 5e6 <= found.cpu_ns < 100e6 and found.self_ns == near(found.total_ns)


def test_what_is_not_measured_is_0(program):
    found = counted(program, ["works"], "works", self_time=False, durations=True)["works"]
    assert (found.self_ns, found.cpu_ns) == (0, 0) and not found.has_self and not found.has_cpu
