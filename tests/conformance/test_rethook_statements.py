"""Statements about return hooks that no other test is about (docs/conformance.md)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes

import pytest
from isolation import TESTS, run_source
from programs import basic, site_of

import fprobe
import sandbox
from ftrace.core.ops import change_flags
from ftrace.core.tracer import tracer
from ftrace.hit.records import STOPPED


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


def word_at(address):
    return ctypes.c_uint64.from_address(address).value


def stubs_of(program):
    return tracer().table.block_of(program).stub_text


def call_with_body(program, body):
    """apply(body, 5): body(x) runs within the hooked call."""
    callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(body)
    return program["apply"](ctypes.cast(callback, ctypes.c_void_p).value, 5)


@pytest.mark.parametrize("declined", [False, True])
def test_rh9_rh20_rb1_rb6_the_return_slot_holds_the_stubs_address_while_the_body_runs(program, declined):
    """... and stays untouched for a call whose exit is declined."""
    slots, seen = [], []

    def entry(fp, ip, ret_ip, regs, data):
        slots.append((regs.sp, ret_ip))
        return declined

    def body(x):
        address, parent = slots[-1]
        seen.append((word_at(address) in stubs_of(program), word_at(address) == parent))
        return x

    with fprobe.attach("apply", entry=entry, exit=lambda *hit: None):
        assert call_with_body(program, body) == 5
    assert seen == [(not declined, declined)]


def test_rh1_rb2_one_node_per_hooked_call_however_many_probes(program):
    nodes = []

    def body(x):
        nodes.append(tracer().runtime.shadow_ips())
        return x

    exits = []
    with (
        fprobe.attach("apply", exit=lambda *hit: exits.append(1), nr_maxactive=1),
        fprobe.attach("apply", exit=lambda *hit: exits.append(2), nr_maxactive=1),
    ):
        call_with_body(program, body)
    assert nodes == [[site_of(program, "apply")]] and exits == [1, 2]


def test_rb7_overflow_is_a_miss_of_every_probe_with_an_exit_handler(program):
    """The entry handlers run all the same, and what has no exit handler has missed nothing."""
    handlers = {"entry": lambda *hit: 0, "exit": lambda *hit: None, "nr_maxactive": 1000}
    large = fprobe.attach("factorial", entry_data_size=1 << 16, **handlers)  # a thread has room for four of these
    plain = fprobe.attach("factorial", **handlers)
    with large, plain, fprobe.attach("factorial", entry=lambda *hit: 0) as entries:
        assert program["factorial"](10) == 3628800
    assert [(p.counts.hits, p.counts.missed_depth, p.counts.missed) for p in (large, plain)] == [(10, 6, 6)] * 2
    assert entries.counts.hits == 10 and entries.counts.missed == 0


def test_rh12_rb4_rb5_at_exit_the_node_is_on_top_and_the_slot_still_holds_the_stub(program):
    seen = []

    def exit_(fp, ip, ret_ip, regs, data):
        seen.append((tracer().runtime.shadow_ips(), word_at(regs.sp - 8) in stubs_of(program), regs.ip == ret_ip))

    with fprobe.attach("leaf", exit=exit_), fprobe.attach("leaf", exit=exit_):
        program["leaf"](1)
    assert seen == [([site_of(program, "leaf")], True, True)] * 2
    assert tracer().runtime.shadow_ips() == []


def test_rh2_rh21_fp45_a_stopped_pool_gives_no_nodes_and_calls_nobody(program):
    """Between the two steps of unregistering: entries are skipped and counted, returns go on without their handler."""
    entered, left = [], []
    probe = fprobe.attach("apply", entry=lambda *hit: entered.append(1) and None, exit=lambda *hit: left.append(1))

    def body(x):
        change_flags(probe.fp.ops, on=STOPPED)
        return x

    with probe:
        assert call_with_body(program, body) == 5
        assert (entered, left, probe.fp.nmissed) == ([1], [], 0)
        assert call_with_body(program, lambda x: x) == 5
        assert (entered, left, probe.fp.nmissed) == ([1], [], 1)


def test_rh23_stopping_takes_effect_between_two_exit_handlers_of_one_call(program):
    order = []
    second = fprobe.attach("leaf", exit=lambda *hit: order.append("second"))

    def first_exit(*hit):
        order.append("first")
        if second.fp.registered:
            second.detach()

    with fprobe.attach("leaf", exit=first_exit):  # registered first, so its exit handler runs first
        second.attach()
        assert program["leaf"](1) == 2
        assert order == ["first"] and not second.fp.registered
        assert program["leaf"](1) == 2
    assert order == ["first", "first"]


def test_rh13_what_exit_handlers_find_and_what_later_ones_find_changed(program):
    """A changed ip is seen by those that come after and has no effect; ret_ip stays what it is."""
    seen = []

    def note(fp, ip, ret_ip, regs, data):
        seen.append((regs.ip, regs.orig_ax, regs.cs, ret_ip))
        regs.ip, regs.sp = 0x1234, 0x5678
        regs.flags ^= 1

    with fprobe.attach("leaf", exit=note), fprobe.attach("leaf", exit=note):
        assert program["leaf"](1) == 2
    real = seen[0][0]
    orig_ax = (1 << 64) - 1
    assert seen == [(real, orig_ax, 0x33, real), (0x1234, orig_ax, 0x33, real)]


CARRY = """
define i64 @anchor() { ret i64 0 }
define i64 @carries(i64 %x) noinline {
  %r = add i64 %x, 1
  ret i64 %r
}
define i64 @carry_of() {
  %r = call i64 asm sideeffect "call carries; sbb %rax, %rax",
    "={rax},{rdi},~{rcx},~{rdx},~{rsi},~{r8},~{r9},~{r10},~{r11},~{flags},~{memory}"(i64 1)
  ret i64 %r
}
"""


def test_rh13_changed_flags_take_effect():
    module = sandbox.load(CARRY, name="carry")

    def exit_(fp, ip, ret_ip, regs, data):
        regs.flags = regs.flags & ~1 | wanted

    for wanted in (0, 1):
        with fprobe.attach("carries", exit=exit_):
            assert module["carry_of"]() & 1 == wanted
    module.unload()


TAILS = """
define i64 @third(i64 %x) noinline { %r = add i64 %x, 3  ret i64 %r }
define i64 @second(i64 %x) noinline { %r = musttail call i64 @third(i64 %x)  ret i64 %r }
define i64 @first(i64 %x) noinline { %r = musttail call i64 @second(i64 %x)  ret i64 %r }
define i64 @outside(i64 %x) noinline { %r = call i64 @first(i64 %x)  %s = add i64 %r, 1  ret i64 %s }
"""


def test_rh10_rh18_of_several_nodes_with_one_frame_the_oldest_knows_the_return_address():
    """Also while the function runs, where the newer ones' is another stub."""
    module = sandbox.load(TAILS, name="tails")
    outside, found = module.symbol("outside"), []

    def look(fp, ip, ret_ip, regs, data):
        slot = regs.sp if regs.ip == ip + 5 else regs.sp - 8
        first = fprobe.rethook_find_ret_addr(slot)
        found.append((outside.address < first.address < outside.end, fprobe.rethook_find_ret_addr(slot, first.cur)))

    note = lambda *hit: None  # noqa: E731
    with fprobe.attach(["first", "second"], exit=note), fprobe.attach("third", entry=look, exit=look) as probe:
        assert module["outside"](1) == 5
    assert probe.fp.errors.first is None
    assert found == [(True, (0, 0))] * 2
    module.unload()


_LOST = """
import ctypes
import fprobe
from ftrace.core.tracer import tracer
from programs import basic

module = basic()

@ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
def body(x):
    for task in tracer().runtime.tasks():
        task.top = task.bottom  # as if nobody had hooked this call
    return x

with fprobe.attach("apply", exit=lambda *hit: None):
    module["apply"](ctypes.cast(body, ctypes.c_void_p).value, 5)
print("went on")
"""


def test_rh15_a_return_that_matches_no_node_ends_the_process_with_a_message():
    done = run_source(f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{_LOST}")
    assert "Return address not found" in done.stderr and "went on" not in done.stdout and done.returncode != 0
