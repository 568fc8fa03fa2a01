"""The fast trampolines keep what the program has in its registers, also on the ways that are rarely taken."""

from __future__ import annotations

import ctypes

import pytest
from isolation import isolated

import fprobe
import sandbox
from ftrace.hit.records import Probe
from sandbox.native import Structure, cast, i32, native, ptr, struct, u64, void
from sandbox.threads.tasks import DATA_STACK, NODE, NODES

NODE_COUNT = (DATA_STACK - NODES) // NODE - 1
"""Calls that a shadow stack has room for, above the sentinel."""

IR = """
define i64 @six(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) noinline {
  %b1 = mul i64 %b, 10
  %c1 = mul i64 %c, 100
  %d1 = mul i64 %d, 1000
  %e1 = mul i64 %e, 10000
  %f1 = mul i64 %f, 100000
  %s1 = add i64 %a, %b1
  %s2 = add i64 %s1, %c1
  %s3 = add i64 %s2, %d1
  %s4 = add i64 %s3, %e1
  %s5 = add i64 %s4, %f1
  ret i64 %s5
}

; The sum of 1..n and the sum of their squares, in rax and rdx.
define {i64, i64} @sums(i64 %n) noinline {
  %end = icmp eq i64 %n, 0
  br i1 %end, label %last, label %more
last:
  ret {i64, i64} zeroinitializer
more:
  %n1 = sub i64 %n, 1
  %rest = call {i64, i64} @sums(i64 %n1)
  %x = extractvalue {i64, i64} %rest, 0
  %y = extractvalue {i64, i64} %rest, 1
  %x1 = add i64 %x, %n
  %square = mul i64 %n, %n
  %y1 = add i64 %y, %square
  %r = insertvalue {i64, i64} poison, i64 %x1, 0
  %s = insertvalue {i64, i64} %r, i64 %y1, 1
  ret {i64, i64} %s
}

define i64 @hold(i64 %n) noinline {
  %both = call {i64, i64} @sums(i64 %n)
  %x = extractvalue {i64, i64} %both, 0
  %r = add i64 %x, 1
  ret i64 %r
}
"""


@native(cc="preserve_most")
def agree(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    return 0


@native(cc="preserve_most")
def cancel(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: u64) -> i32:
    return 1


@native(cc="preserve_most")
def leave(fp: u64, ip: u64, ret_ip: u64, regs: u64, data: u64) -> void:
    pass


@struct
class Used(Structure):
    """A probe's action: how many words of entry data there are, and how many were not zero."""

    words: u64
    found: u64


@native(cc="preserve_most", bounded=False)
def stain(fp: ptr[Probe], ip: u64, ret_ip: u64, regs: u64, data: ptr[u64]) -> i32:
    used = cast(ptr[Used], fp.action)
    for index in range(used.words):
        if data[index] != 0:
            used.found += 1
        data[index] = ip
    return 0


@pytest.fixture(scope="module")
def program():
    module = sandbox.load(IR, name="registers", opt=2)
    yield module
    module.unload()


@pytest.mark.parametrize("data_size", [0, 8, 24])
@pytest.mark.parametrize(("entry", "exit_"), [(agree, leave), (cancel, leave), (agree, None), (None, leave)])
def test_fp34_the_arguments_reach_the_function_whatever_the_entry_handler_returns(program, entry, exit_, data_size):
    with fprobe.attach("six", entry=entry, exit=exit_, entry_data_size=data_size, nr_maxactive=4) as probe:
        assert [program["six"](1, 2, 3, 4, 5, 6) for _ in range(4)] == [654321] * 4
    assert probe.hits == 4


@pytest.mark.parametrize("data_size", [0, 8, 24])
def test_fp29_a_cancelled_call_gives_its_node_back(program, data_size):
    with fprobe.attach("six", entry=cancel, exit=leave, entry_data_size=data_size, nr_maxactive=2) as probe:
        assert {program["six"](1, 2, 3, 4, 5, 6) for _ in range(9)} == {654321}
    assert probe.hits == 9 and probe.counts.missed == 0


@isolated
def test_rb7_a_call_deeper_than_the_shadow_stack_is_missed_though_it_has_a_credit():
    module = sandbox.load(IR, name="deep", opt=2)
    with fprobe.attach("sums", entry=agree, exit=leave, nr_maxactive=NODE_COUNT) as probe:
        module["hold"](NODE_COUNT - 1)
        assert probe.hits == NODE_COUNT and probe.counts.missed == 0
        with fprobe.attach("hold", entry=agree, exit=leave):
            assert module["hold"](NODE_COUNT - 1) == NODE_COUNT * (NODE_COUNT - 1) // 2 + 1
        assert probe.counts.missed == probe.counts.missed_depth == 1
    module.unload()


@pytest.mark.parametrize("data_size", [8, 24, 64])
def test_fp7_entry_data_is_zero_in_every_call(program, data_size):
    used = Used.ctypes(data_size // 8, 0)
    probe = fprobe.fprobe(stain, leave, entry_data_size=data_size, nr_maxactive=1)
    probe.action = ctypes.addressof(used)
    fprobe.register_fprobe_ips(probe, [program.symbol("six").address])
    assert {program["six"](1, 2, 3, 4, 5, 6) for _ in range(5)} == {654321}
    fprobe.unregister_fprobe(probe)
    assert (probe.nmissed, used.found) == (0, 0)


@pytest.mark.parametrize("data_size", [0, 8, 24])
def test_fp27_results_in_two_registers_survive_a_pool_that_runs_out(program, data_size):
    with fprobe.attach("sums", entry=agree, exit=leave, entry_data_size=data_size, nr_maxactive=3) as probe:
        assert [tuple(program["sums"](9)) for _ in range(3)] == [(45, 285)] * 3
    assert probe.counts.missed_nodes == 3 * 7
