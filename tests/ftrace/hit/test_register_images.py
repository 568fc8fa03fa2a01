"""Handlers that use the registers of arguments or results get those, others get all (FP-6, FP-9, RH-13)."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
from ftrace.core.handlers.registers import regs_get_kernel_argument, regs_return_value
from ftrace.core.runtime import runtime
from ftrace.core.tracer import tracer
from sandbox.native import cast, null, ptr, u64

IR = """target triple = "x86_64-unknown-linux-gnu"
define i64 @mixed(i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f) noinline {
  %rax = call i64 asm sideeffect "", "={rax}"()
  %b1 = mul i64 %b, 10
  %c1 = mul i64 %c, 100
  %d1 = mul i64 %d, 1000
  %e1 = mul i64 %e, 10000
  %f1 = mul i64 %f, 100000
  %r1 = mul i64 %rax, 1000000
  %s1 = add i64 %a, %b1
  %s2 = add i64 %s1, %c1
  %s3 = add i64 %s2, %d1
  %s4 = add i64 %s3, %e1
  %s5 = add i64 %s4, %f1
  %s6 = add i64 %s5, %r1
  ret i64 %s6
}
; Seven digits: the arguments 1 to 6, and 7 in rax.
define i64 @call_mixed() noinline "notrace" {
  %r = call i64 asm sideeffect "subq $$8, %rsp\\0A\\09movl $$7, %eax\\0A\\09callq *$1\\0A\\09addq $$8, %rsp",
    "=&{rax},r,{rdi},{rsi},{rdx},{rcx},{r8},{r9},~{rdi},~{rsi},~{rdx},~{rcx},~{r8},~{r9},~{r10},~{r11},~{memory},~{dirflag},~{flags}"
    (ptr @mixed, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6)
  ret i64 %r
}
define {i64, i64, i64} @three(i64 %a) noinline {
  %b = add i64 %a, 1
  %c = add i64 %a, 2
  %r = insertvalue {i64, i64, i64} poison, i64 %a, 0
  %s = insertvalue {i64, i64, i64} %r, i64 %b, 1
  %t = insertvalue {i64, i64, i64} %s, i64 %c, 2
  ret {i64, i64, i64} %t
}
define i64 @call_three(i64 %x) noinline "notrace" {
  %r = call {i64, i64, i64} @three(i64 %x)
  %a = extractvalue {i64, i64, i64} %r, 0
  %b = extractvalue {i64, i64, i64} %r, 1
  %c = extractvalue {i64, i64, i64} %r, 2
  %b1 = mul i64 %b, 100
  %c1 = mul i64 %c, 10000
  %s = add i64 %a, %b1
  %t = add i64 %s, %c1
  ret i64 %t
}
define i64 @leaf(i64 %x) noinline { %r = add i64 %x, 1  ret i64 %r }
define i64 @other(i64 %x) noinline { %r = add i64 %x, 100  ret i64 %r }
"""
DIGITS = 7654321
seen = fprobe.Array(u64, 16)


@fprobe.native
def arguments(fp, ip, ret_ip, regs, data):
    seen[0] = regs.di
    seen[1] = regs.si
    seen[2] = regs.dx
    seen[3] = regs.cx
    seen[4] = regs.r8
    seen[5] = regs.r9
    seen[6] = regs.ax
    seen[7] = regs.ip - ip
    seen[8] = cast(ptr[u64], regs.sp)[0] - ret_ip
    seen[9] += 1


@fprobe.native
def one_more_each(fp, ip, ret_ip, regs, data: ptr[u64]):
    data[0] = regs.di
    regs.di += 1
    regs.si += 1
    regs.dx += 1
    regs.cx += 1
    regs.r8 += 1
    regs.r9 += 1
    regs.ax += 1


@fprobe.native
def one_more_each_and_cancel(fp, ip, ret_ip, regs, data):
    regs.di += 1
    regs.si += 1
    regs.dx += 1
    regs.cx += 1
    regs.r8 += 1
    regs.r9 += 1
    regs.ax += 1
    return 1


@fprobe.native
def bx_too(fp, ip, ret_ip, regs, data):
    seen[10] = regs.bx
    seen[9] += 1


@fprobe.native
def results(fp, ip, ret_ip, regs, data: ptr[u64]):
    seen[11] = regs.ax * 10000 + regs.dx * 100 + regs.cx
    seen[12] = (regs.ip - ret_ip) + (cast(ptr[u64], regs.sp - 8)[0] - regs.ip)
    seen[13] = data[0]
    regs.ax += 1
    regs.dx += 1
    regs.cx += 1
    regs.ip = 0
    regs.sp = 0


@fprobe.native
def results_of_all(fp, ip, ret_ip, regs, data):
    seen[11] = regs.ax * 10000 + regs.dx * 100 + regs.cx + 0 * regs.r12
    regs.ax += 1
    regs.dx += 1
    regs.cx += 1


@fprobe.native
def by_the_kernels_names(fp, ip, ret_ip, regs, data):
    seen[0] = regs_get_kernel_argument(regs, 0)


@fprobe.native
def result_by_the_kernels_name(fp, ip, ret_ip, regs, data):
    seen[11] = regs_return_value(regs)


@fprobe.native
def ignoring(fp, ip, ret_ip, regs, data):
    seen[9] += 1


@fprobe.native
def redirect(fp, ip, ret_ip, regs, data):
    if regs.di > 4096:
        regs.ip = regs.di


@fprobe.native
def compares_with_null(fp, ip, ret_ip, regs, data):
    if regs != null:
        seen[9] += 1


@pytest.fixture(scope="module")
def program():
    import sandbox

    module = sandbox.load(IR, name="images", opt=2)
    yield module
    module.unload()


@pytest.fixture(autouse=True)
def _forgotten():
    seen.clear()


def trampolines(module, name):
    """The entry and exit trampoline of a function."""
    block = tracer().table.block_of(module)
    record = block.list_at(block.positions[name])
    words = (ctypes.c_uint64 * 2).from_address(record.address)
    found = {symbol.address: symbol.name for symbol in runtime().image.symbols}
    return tuple(found[word].removeprefix("ftrace_") for word in words)


CHOICES = [
    (arguments, None, 0, ("entry_only_sp", "exit_fast")),
    (arguments, ignoring, 0, ("both_sp", "exit_fast")),
    (arguments, ignoring, 8, ("both_sp_word", "exit_fast_data")),
    (arguments, results, 24, ("both_sp_data", "exit_results_data")),
    (ignoring, results, 8, ("both_word", "exit_results_data")),
    (ignoring, result_by_the_kernels_name, 0, ("both", "exit_results")),
    (None, result_by_the_kernels_name, 0, ("exit_only", "exit_results")),
    (by_the_kernels_names, None, 0, ("entry_only_sp", "exit_fast")),
    (one_more_each, None, 8, ("entry_only_args", "exit_fast")),
    (one_more_each, ignoring, 8, ("both_args_word", "exit_fast_data")),
    (one_more_each, result_by_the_kernels_name, 24, ("both_args_data", "exit_results_data")),
    (one_more_each_and_cancel, ignoring, 0, ("both_args", "exit_fast")),
    (bx_too, None, 0, ("entry_regs", "exit_fast")),
    (bx_too, result_by_the_kernels_name, 8, ("both_regs", "exit_results_data")),
    (ignoring, results_of_all, 0, ("both", "exit_regs")),
    (redirect, ignoring, 0, ("both_regs", "exit_fast")),
    (compares_with_null, None, 0, ("entry_regs", "exit_fast")),
    (ignoring, ignoring, 0, ("both", "exit_fast")),
]


@pytest.mark.parametrize(("entry", "exit_", "size", "expected"), sampled(CHOICES, 6))
def test_trampolines_are_chosen_by_what_the_handlers_use(program, entry, exit_, size, expected):
    with fprobe.attach("leaf", entry=entry, exit=exit_, entry_data_size=size):
        assert trampolines(program, "leaf") == expected
        assert program["leaf"](1) >= 2


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("size", [None, 8, 24])
def test_fp6_the_arguments_are_what_they_are(program, size, others):
    back = {"exit": ignoring, "entry_data_size": size} if size is not None else {}
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(fprobe.attach("mixed", entry=ignoring, exit=ignoring))
        stack.enter_context(fprobe.attach("mixed", entry=arguments, **back))
        assert [program["call_mixed"]() for _ in range(3)] == [DIGITS] * 3
        assert trampolines(program, "mixed")[0].startswith("entry_multi" if others else ("both_sp", "entry_only_sp"))
    assert list(map(int, seen))[:9] == [1, 2, 3, 4, 5, 6, 7, 5, 0]


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("exit_", [None, ignoring, results_of_all])
@pytest.mark.parametrize("entry", [one_more_each, one_more_each_and_cancel])
def test_fp9_changed_arguments_reach_the_function(program, entry, exit_, others):
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(fprobe.attach("mixed", entry=ignoring, exit=ignoring))
        stack.enter_context(fprobe.attach("mixed", entry=entry, exit=exit_, entry_data_size=8 if exit_ else 0))
        got = [program["call_mixed"]() for _ in range(3)]
    added = 1 if exit_ is results_of_all and entry is one_more_each else 0
    assert got == [DIGITS + 1111111 + added] * 3


@pytest.mark.parametrize("others", [0, 2])
def test_rh13_results_are_seen_and_changed_but_where_it_returns_to_is_not(program, others):
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(fprobe.attach("three", entry=ignoring, exit=ignoring))
        probe = stack.enter_context(fprobe.attach("three", entry=one_more_each, exit=results))
        assert trampolines(program, "three")[1] == ("exit_multi" if others else "exit_results_data")
        assert [program["call_three"](4) for _ in range(3)] == [80706] * 3
    assert [seen[11], seen[12], seen[13]] == [50607, 0, 4]
    assert probe.hits == 3 and probe.counts.missed == 0


def test_rh16_changes_of_several_exit_handlers_accumulate(program):
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(fprobe.attach("three", exit=results_of_one_frame))
        assert program["call_three"](4) == 60504 + 3
        assert trampolines(program, "three") == ("entry_multi", "exit_multi")


@fprobe.native
def results_of_one_frame(fp, ip, ret_ip, regs, data):
    regs.ax += 1


@isolated(shared=True)
def test_a_shortage_of_nodes_and_recursion_with_images():
    import sandbox

    recursive = """
    define i64 @down(i64 %n) noinline {
      %end = icmp eq i64 %n, 0
      br i1 %end, label %last, label %more
    last:
      ret i64 0
    more:
      %n1 = sub i64 %n, 1
      %r = call i64 @down(i64 %n1)
      %s = add i64 %r, %n
      ret i64 %s
    }"""
    module = sandbox.load(recursive, name="down", opt=0)
    with fprobe.attach("down", entry=arguments, exit=result_by_the_kernels_name, nr_maxactive=3) as probe:
        assert [module["down"](9) for _ in range(4)] == [45] * 4
        assert (probe.counts.hits, probe.counts.missed_nodes) == (40, 28)
        assert (seen[9], seen[11]) == (40, 45)


LANDING = """
@came_from = global i64 0
define i64 @anchor() { ret i64 0 }
module asm ".globl landing"
module asm ".type landing,@function"
module asm "landing: add $4711, %rax"
module asm "jmp *came_from(%rip)"
module asm ".size landing, .-landing"
"""


@fprobe.native
def land(fp, ip, ret_ip, regs, data):
    words = cast(ptr[u64], fp.action)
    cast(ptr[u64], words[1])[0] = ret_ip
    cast(ptr[u64], regs.sp)[0] = words[0]


@fprobe.native
def land_with_all(fp, ip, ret_ip, regs, data):
    words = cast(ptr[u64], fp.action)
    cast(ptr[u64], words[1])[0] = ret_ip + 0 * regs.bx
    cast(ptr[u64], regs.sp)[0] = words[0]


HANDLERS = {None: None, "ignoring": ignoring, "all": results_of_all}


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("exit_", HANDLERS)
@pytest.mark.parametrize("all_", [False, True])
@isolated(shared=True)
def test_fp5_a_function_returns_where_its_slot_says_after_the_entry_handlers(all_, exit_, others):
    import sandbox

    module, landing = sandbox.load(IR, name="images", opt=2), sandbox.load(LANDING, name="landing")
    came_from = next(symbol.address for symbol in landing.data if symbol.name == "came_from")
    words = (ctypes.c_uint64 * 2)(landing.symbol("landing").address, came_from)
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(fprobe.attach("leaf", entry=ignoring, exit=ignoring))
        probe = fprobe.attach("leaf", entry=land_with_all if all_ else land, exit=HANDLERS[exit_])
        probe.fp.action = ctypes.addressof(words)
        stack.enter_context(probe)
        assert [module["leaf"](1) for _ in range(3)] == [2 + 4711 + (exit_ == "all")] * 3
