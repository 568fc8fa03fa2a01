"""Hazard: greenlets put their stacks aside and share one place, so that calls that are under way have the same frame in turn."""

# ruff: noqa: ARG005  (the signature of a callback is given)

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
from isolation import isolated, run
from programs import load_c
from sampled import in_stress

import fprobe
import kprobes
from ftrace.core.runtime import runtime
from ftrace.hit.parking import SPARES
from sandbox.native import i32, ptr, u64

greenlet = pytest.importorskip("greenlet")

SOURCE = """
__attribute__((noipa)) long apply(long (*function)(long), long x) { return function(x) + x; }
__attribute__((noipa)) long outer(long (*function)(long), long x) { return apply(function, x) * 2; }
"""
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)
seen = fprobe.Array(u64, 3, shared=True)
slots = fprobe.Hash(u64, u64, size=256)
"""How many calls had which return slot."""


@kprobes.native
def entered(ri, regs) -> i32:
    ri.data[0] = regs.si
    return 0


@kprobes.native
def entered_in_slot(ri, regs) -> i32:
    ri.data[0] = regs.si
    slots[regs.sp] += 1
    return 0


@kprobes.native
def returned(ri, regs):
    seen[0] += 1
    if regs.ax != ri.data[0]:
        seen[1] += 1


@fprobe.native
def on_entry(fp, ip, ret_ip, regs, data: ptr[u64]) -> i32:
    data[0] = regs.si
    return 0


@fprobe.native
def on_exit(fp, ip, ret_ip, regs, data: ptr[u64]):
    seen[0] += 1
    if regs.ax != data[0]:
        seen[1] += 1


@cache
def foreign() -> ctypes.CDLL:
    directory = Path(mkdtemp(prefix="greenlets-"))
    (directory / "apply.c").write_text(SOURCE)
    output = directory / "libapplied.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", str(output), str(directory / "apply.c")], check=True)
    return ctypes.CDLL(str(output))


def prototype(function: object) -> object:
    function.restype, function.argtypes = ctypes.c_long, (CALLBACK, ctypes.c_long)
    return function


def switch_about(apply, seed, count=12, depths=3, results=None):
    """Greenlets that call `apply`, each with a number of its own, and go on in any order; what they got."""
    hub, generator = greenlet.getcurrent(), random.Random(seed)
    results = {} if results is None else results

    def pause(_x):
        for _ in range(generator.randrange(1, 4)):
            hub.switch()
        return 0

    callback = CALLBACK(pause)

    def deeper(number, levels):
        if levels:
            return deeper(number, levels - 1)
        inner = CALLBACK(lambda x: apply(callback, x) - x) if number % 3 == 0 else callback
        results[number] = apply(inner, number)
        return None

    waiting = [greenlet.greenlet(deeper) for _ in range(count)]
    for number, each in enumerate(waiting):
        each.switch(number, number % depths)
    while waiting := [each for each in waiting if not each.dead]:
        generator.choice(waiting).switch()
    assert results == {number: number for number in range(count)}
    return count + -(-count // 3)


def expect_quick_again():
    """No call is left on a shadow stack, and the next one may take the fast way."""
    for task in runtime().tasks():
        assert ctypes.cast(task.top, ctypes.c_void_p).value == ctypes.cast(task.bottom, ctypes.c_void_p).value
        assert task.limit == task.nodes_end


@pytest.mark.parametrize("optimized", [False, in_stress(True)], ids=["breakpoint", "jump"])
@isolated(timeout=60)
def test_kretprobed_calls_of_greenlets_in_one_place_are_told_apart(optimized):
    kprobes.set_kprobes_optimization(int(optimized))
    apply = prototype(foreign().apply)
    rp = kprobes.kretprobe(
        symbol_name="libapplied:apply", entry_handler=entered, handler=returned, data_size=8, maxactive=100
    )
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    calls = sum(switch_about(apply, seed) for seed in range(20))
    assert (seen[0], seen[1], rp.nmissed, rp.kp.nmissed) == (calls, 0, 0, 0)
    expect_quick_again()
    kprobes.unregister_kretprobe(rp)
    switch_about(apply, 1)


@isolated(timeout=60)
def test_fprobed_calls_of_greenlets_in_one_place_are_told_apart():
    module = load_c(SOURCE)
    apply = ctypes.CFUNCTYPE(ctypes.c_long, CALLBACK, ctypes.c_long)(module.symbol("apply").address)
    in_python = []
    with fprobe.attach("apply", entry=on_entry, exit=on_exit, nr_maxactive=200) as probe:
        calls = sum(switch_about(apply, seed) for seed in range(10))
        assert (seen[0], seen[1], probe.counts.missed) == (calls, 0, 0)
        expect_quick_again()
        rp = kprobes.kretprobe(symbol_name="apply", entry_handler=entered, handler=returned, data_size=8, maxactive=100)
        kprobes.register_kretprobe(rp)
        with fprobe.attach("apply", exit=lambda *hit: in_python.append(hit[1]), nr_maxactive=200):
            before = seen[0]
            calls = sum(switch_about(apply, seed) for seed in range(10))
        assert (seen[0] - before, seen[1], probe.counts.missed, rp.nmissed) == (2 * calls, 0, 0, 0)
        assert in_python == [module.symbol("apply").address] * calls
        kprobes.unregister_kretprobe(rp)
    expect_quick_again()


@isolated(timeout=60)
def test_more_calls_in_one_place_than_there_are_stubs_for_are_missed():
    apply = prototype(foreign().apply)
    rp = kprobes.kretprobe(
        symbol_name="libapplied:apply", entry_handler=entered_in_slot, handler=returned, data_size=8, maxactive=500
    )
    kprobes.register_kretprobe(rp)
    hub, results = greenlet.getcurrent(), []
    callback = CALLBACK(lambda x: hub.switch() or 0)
    many = [greenlet.greenlet(lambda number=number: results.append(apply(callback, number))) for number in range(80)]
    for each in many:
        each.switch()
    # Python 3.15 makes the first call from another place of the stack.
    in_one_slot = max(slots.values())
    assert in_one_slot > 70 and sum(slots.values()) == 80
    assert rp.nmissed == in_one_slot - (SPARES + 1)
    for each in many:
        each.switch()
    assert sorted(results) == list(range(80))
    assert (seen[0], seen[1]) == (80 - rp.nmissed, 0)
    expect_quick_again()


IMPORTED_LATER = """
import ctypes, sys
import kprobes
from ftrace.core.runtime import runtime
from sandbox.native import u64
import fprobe

seen = fprobe.Array(u64, 1, shared=True)

@kprobes.native
def returned(ri, regs):
    seen[0] += 1

rp = kprobes.kretprobe(symbol_name="libc:qsort", handler=returned, maxactive=50)
kprobes.register_kretprobe(rp)
kprobes.wait_for_kprobe_optimizer()
assert "greenlet" not in sys.modules and not runtime().image.variable("spare_stubs").value
libc = ctypes.CDLL("libc.so.6")
compares = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

def sort(switch):
    libc.qsort((ctypes.c_int * 4)(), 4, 4, compares(lambda a, b: switch() or 0))

def begin():
    import greenlet
    if not begun:
        begun.append(greenlet)
        hub = greenlet.getcurrent()
        waiting = [greenlet.greenlet(sort) for _ in range(5)]
        for each in waiting:
            each.switch(hub.switch)
        while waiting := [each for each in waiting if not each.dead]:
            waiting[-1].switch()

begun = []
sort(begin)
assert (seen[0], rp.nmissed) == (6, 0), (seen[0], rp.nmissed)
print("the end")
"""


def test_greenlet_may_be_imported_when_probes_are_there_and_a_call_is_under_way(tmp_path):
    script = tmp_path / "later.py"
    script.write_text(IMPORTED_LATER)
    done = run([sys.executable, str(script)], timeout=60)
    assert done.stdout == "the end\n", done.stderr


@isolated(timeout=60)
def test_qsort_with_comparisons_that_switch():
    libc = ctypes.CDLL("libc.so.6")
    compares = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
    returns = []
    rp = kprobes.kretprobe(
        symbol_name="libc:qsort", handler=lambda ri, regs: returns.append(ri.task), maxactive=50, python_unsafe=True
    )
    kprobes.register_kretprobe(rp)
    kprobes.wait_for_kprobe_optimizer()
    hub, sorted_ones = greenlet.getcurrent(), []

    def sort(number):
        values = (ctypes.c_int * 6)(5, 1, number, 3, 9, 2)
        libc.qsort(values, 6, 4, compares(lambda a, b: hub.switch() or a[0] - b[0]))
        sorted_ones.append(list(values) == sorted(values))

    waiting = [greenlet.greenlet(sort) for _ in range(8)]
    for number, each in enumerate(waiting):
        each.switch(number)
    while waiting := [each for each in waiting if not each.dead]:
        for each in waiting:
            each.switch()
    assert sorted_ones == [True] * 8
    assert len(returns) == 8
    assert rp.nmissed == 0


def run_about(count):
    """Greenlets that each switch back and forth; how often they went on."""
    steps = []

    def body(number):
        for _ in range(3):
            steps.append(number)
            greenlet.getcurrent().parent.switch()

    waiting = [greenlet.greenlet(body) for _ in range(count)]
    for number, each in enumerate(waiting):
        each.switch(number)
    while waiting := [each for each in waiting if not each.dead]:
        waiting[0].switch()
    return len(steps)


@isolated
def test_what_calls_code_that_copies_stacks_may_return_twice():
    with fprobe.attach("_greenlet:*", action=fprobe.Stat()) as probe:
        assert run_about(4) == 12
        assert probe.hits > 12
        twice = [skipped.name for skipped in probe.skipped if "it may return twice" in skipped.reason]
    assert len(twice) == 1 and "g_switchstack" in twice[0]
    function = "_greenlet:_ZN8greenlet8Greenlet13g_switchstackEv"
    with fprobe.attach(function, action=fprobe.Count()) as entries, kprobes.attach(function, action=kprobes.Count()):
        assert run_about(2) == 6
    assert entries.hits > 6
    with pytest.raises(OSError, match="it may return twice"):
        kprobes.attach_return(function, action=kprobes.Count()).attach()


@isolated
def test_calls_of_a_suspended_greenlet_are_around_no_others():
    from fprobe.calls.log import log_calls

    module = load_c(SOURCE + "__attribute__((noipa)) long leaf(long x) { return x + 1; }")
    apply = ctypes.CFUNCTYPE(ctypes.c_long, CALLBACK, ctypes.c_long)(module["apply"].address)
    leaf = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(module["leaf"].address)
    main = greenlet.getcurrent()
    log = log_calls(["apply", "leaf"])

    def switching(x):
        leaf(x)
        main.switch()
        return leaf(x)

    other = greenlet.greenlet(lambda: apply(CALLBACK(switching), 1))
    other.switch()
    leaf(2)
    apply(CALLBACK(leaf), 3)
    other.switch()
    leaf(4)
    inner = [("> leaf", 1), ("< leaf", 1)]
    plain = [("> leaf", 0), ("< leaf", 0)]
    found = [(str(event), event.depth) for event in log.events]
    assert found == [
        *[("> apply", 0), *inner, *plain],
        *[("> apply", 0), *inner, ("< apply", 0)],
        *[*inner, ("< apply", 0), *plain],
    ], found
