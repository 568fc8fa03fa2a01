"""Native handlers that look at any register, on the fast trampolines (FP-6, FP-9, RH-13), and stubs after a prologue.

Those that use the registers of arguments or results only have other trampolines (test_register_images).
"""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated
from programs import nodes_lost
from sampled import in_stress

from ftrace.hit.records import Probe
from ftrace.hit.x86_64.pt_regs import pt_regs
from sandbox.native import cast, i32, native, null, ptr, u64, void

PROGRAM = """target triple = "x86_64-unknown-linux-gnu"
define i64 @add3(i64 %a, i64 %b, i64 %c) noinline {
  %r = add i64 %a, %b
  %s = add i64 %r, %c
  ret i64 %s
}
define i64 @sum8(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h) noinline {
  %x = mul i64 %h, 8
  %y = add i64 %x, %g
  %z = add i64 %y, %a
  ret i64 %z
}
define i64 @other(i64 %a, i64 %b, i64 %c) noinline {
  ret i64 77
}
; add3 gives back to the caller of tail.
define i64 @tail(i64 %a, i64 %b, i64 %c) noinline {
  %r = musttail call i64 @add3(i64 %a, i64 %b, i64 %c)
  ret i64 %r
}
define i64 @call_tail() noinline "notrace" {
  %r = notail call i64 @tail(i64 1, i64 2, i64 3)
  ret i64 %r
}
define i64 @levels(i64 %n) noinline optnone {
  %end = icmp eq i64 %n, 0
  br i1 %end, label %last, label %more
last:
  ret i64 0
more:
  %less = sub i64 %n, 1
  %r = call i64 @levels(i64 %less)
  %s = add i64 %r, 1
  ret i64 %s
}
"""


@native(cc="preserve_most")
def change_arguments(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    regs.si += 100 + 0 * regs.r15
    if data != null:  # a return node was left
        data[0] = regs.di
    return 0


@native(cc="preserve_most")
def change_result(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    regs.ax = regs.ax * 10 + data[0] + 0 * regs.r15


@native(cc="preserve_most")
def cancel(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    regs.dx = 5 + 0 * regs.r15
    return 1


@native(cc="preserve_most")
def add_thousand(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    regs.ax += 1000 + 0 * regs.r15


@native(cc="preserve_most")
def redirect_by_stack(fp: u64, ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> i32:
    if regs.di > 4096:
        regs.ip = regs.di
    return 0


@native(cc="preserve_most")
def note_caller(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: ptr[pt_regs], data: ptr[u64]) -> void:
    notes = cast(ptr[u64], fp.action)
    notes[0] += 1
    notes[notes[0]] = ret_ip + 0 * regs.r15


def _load(flavour="fentry"):
    import sandbox

    return sandbox.load(PROGRAM, name="registers", opt=2, flavour=flavour)


@isolated(shared=True)
def test_fp9_argument_and_result_writes_take_effect():
    import fprobe

    module = _load()
    with fprobe.attach("add3", entry=change_arguments, exit=change_result, entry_data_size=8) as probe:
        assert [module["add3"](1, 2, 3) for _ in range(5)] == [1061] * 5
    assert probe.counts.hits == 5 and probe.counts.missed == 0
    with fprobe.attach("*", exit=change_result, entry_data_size=8):
        assert [module["sum8"](*range(1, 9)) for _ in range(5)] == [720] * 5


@isolated(shared=True)
def test_fp34_a_cancelled_call_keeps_what_the_entry_handler_wrote():
    import fprobe

    module = _load()
    for handlers in ({"exit": change_result, "entry_data_size": 8}, {}):
        with fprobe.attach("*", entry=cancel, **handlers) as probe:
            assert [module["add3"](1, 2, 3) for _ in range(5)] == [8] * 5
            assert module["sum8"](*range(1, 9)) == 72
        assert probe.counts.hits == 6 and probe.counts.missed == 0


@isolated(shared=True)
def test_fp9_a_changed_ip_redirects_and_the_exit_handler_still_runs():
    import fprobe

    module = _load()
    other = module.symbol("other").address
    with fprobe.attach("add3", entry=redirect_by_stack):
        assert [module["add3"](other, 0, 0), module["add3"](1, 2, 3)] == [77, 6]
    with fprobe.attach("add3", entry=redirect_by_stack, exit=add_thousand) as probe:
        assert [module["add3"](other, 0, 0) for _ in range(4)] == [1077] * 4
        assert module["add3"](1, 2, 3) == 1006
    assert probe.counts.hits == 5


@isolated(shared=True)
def test_rb3_fp5_tail_calls_return_to_the_real_caller():
    import fprobe

    module = _load()
    notes = (ctypes.c_uint64 * 7)()
    probe = fprobe.attach(["tail", "add3"], entry=change_arguments, exit=note_caller)
    probe.fp.action = ctypes.addressof(notes)
    with probe:
        assert [module["call_tail"]() for _ in range(3)] == [206] * 3
    caller = module.symbol("call_tail")
    assert notes[0] == 6 and all(caller.address < address < caller.end for address in notes[1:]), list(map(hex, notes))


@isolated(shared=True)
def test_fp29_each_return_gives_its_node_back_and_a_call_without_one_is_a_miss():
    import fprobe

    module = _load()
    with fprobe.attach("levels", entry=change_arguments, exit=add_thousand, nr_maxactive=3) as probe:
        assert [module["levels"](2) for _ in range(3)] == [3002] * 3
        assert probe.counts.missed == 0 and nodes_lost(probe.fp) == 0
        assert [module["levels"](4) for _ in range(3)] == [3004] * 3
        assert probe.counts.hits == 9 + 15 and probe.counts.missed_nodes == 3 * 2
        assert nodes_lost(probe.fp) == 0


@isolated(shared=True)
def test_recursion_shortage_and_threads_leave_the_fast_path_and_come_back():
    import threading

    import fprobe

    module = _load()
    results = []
    with fprobe.attach("add3", entry=change_arguments, exit=change_result, entry_data_size=8, nr_maxactive=1) as probe:

        def call():
            results.append([module["add3"](1, 2, 3) for _ in range(2000)])

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert probe.counts.hits == 6000
    flat = [result for each in results for result in each]
    assert flat.count(1061) == 6000 - probe.counts.missed_nodes
    assert flat.count(106) == probe.counts.missed_nodes


@pytest.mark.parametrize("flavour", ["mcount", in_stress("patchable"), "fentry"])
def test_every_flavour_runs_both_handlers(flavour):
    import fprobe
    import sandbox
    import sandbox.demo

    module = sandbox.load(sandbox.demo.source(), name=f"demo-{flavour}", flavour=flavour)
    try:
        expected = module["demo_main"](5)
        record = fprobe.Record()
        with fprobe.attach("*", action=record, nr_maxactive=10_000) as probe:
            assert module["demo_main"](5) == expected
        assert record.written == probe.hits > 1000 and probe.counts.missed == 0
        record.close()
    finally:
        module.unload()
    assert ctypes.sizeof(pt_regs.ctypes) == 21 * 8
