"""Direct calls (FT-77), what they exclude (FT-45), how they are listed (FT-74, FT-75)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import errno
import threading

import pytest
from programs import basic, is_patched, site_of

import fprobe
import sandbox
from ftrace.core.direct import modify_ftrace_direct, register_ftrace_direct, unregister_ftrace_direct
from ftrace.core.filters.lookup import enabled_functions, touched_functions
from ftrace.core.ops import ftrace_ops, ftrace_set_filter, register_ftrace_function, unregister_ftrace_function
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY, FTRACE_OPS_FL_SAVE_REGS
from ftrace.core.tracer import detach_all, tracer

# counts: keeps everything, notes where it returns to and where the function does. doubles: changes the first argument.
# skips: never comes to the function, as the parent's address is on top behind its own.
DIRECT = """
module asm ".text"
module asm ".globl direct_counts"
module asm ".type direct_counts,@function"
module asm "direct_counts:"
module asm "  mov (%rsp), %r11"
module asm "  mov %r11, direct_back(%rip)"
module asm "  mov 8(%rsp), %r11"
module asm "  mov %r11, direct_parent(%rip)"
module asm "  lock incq direct_count(%rip)"
module asm "  ret"
module asm ".size direct_counts, .-direct_counts"
module asm ".globl direct_doubles"
module asm ".type direct_doubles,@function"
module asm "direct_doubles:"
module asm "  add %rdi, %rdi"
module asm "  ret"
module asm ".size direct_doubles, .-direct_doubles"
module asm ".globl direct_skips"
module asm ".type direct_skips,@function"
module asm "direct_skips:"
module asm "  add $$8, %rsp"
module asm "  mov $$77, %eax"
module asm "  ret"
module asm ".size direct_skips, .-direct_skips"
@direct_count = global i64 0
@direct_back = global i64 0
@direct_parent = global i64 0
declare void @direct_counts()
@keep = global ptr @direct_counts
define void @anchor() { ret void }
""".replace("$$", "$")


@pytest.fixture(scope="module")
def direct():
    module = sandbox.load(DIRECT, name="direct")
    yield module
    module.unload()


@pytest.fixture(scope="module", params=["fentry", "mcount"])
def program(request):
    module = basic(flavour=request.param)
    yield module
    module.unload()


@pytest.fixture
def ops():
    made = ftrace_ops()
    yield made
    if made.enabled:
        made.detach()


def variable(direct, name):
    return ctypes.c_uint64.from_address(next(symbol.address for symbol in direct.data if symbol.name == name))


def address(direct, name):
    return direct.symbol(name).address


def on(ops, program, pattern, direct, name):
    """Register a direct function on functions of the program."""
    ftrace_set_filter(ops, pattern, reset=True)
    register_ftrace_direct(ops, address(direct, name))


def fails(code, call, *arguments, **options):
    with pytest.raises(OSError) as caught:
        call(*arguments, **options)
    assert caught.value.errno == code, caught.value


def test_ft77_a_direct_function_is_called_and_the_function_goes_on(program, direct, ops):
    count = variable(direct, "direct_count")
    count.value = 0
    on(ops, program, "leaf", direct, "direct_counts")
    assert program["twice"](1) == 3 and count.value == 2
    assert variable(direct, "direct_back").value == site_of(program, "leaf") + 5
    unregister_ftrace_direct(ops, address(direct, "direct_counts"))
    assert program["twice"](1) == 3 and count.value == 2
    assert not is_patched(program, "leaf") and ops.func is None


def test_ft77_it_finds_the_functions_return_address_above_its_own(direct, ops):
    program = basic()
    on(ops, program, "leaf", direct, "direct_counts")
    program["twice"](1)
    twice = program.symbol("twice")
    assert twice.address < variable(direct, "direct_parent").value < twice.end
    ops.detach()
    program.unload()


def test_ft77_it_may_change_arguments_and_all_arguments_reach_the_function(direct, ops):
    program = basic()
    on(ops, program, "leaf", direct, "direct_doubles")
    assert program["leaf"](20) == 41
    ftrace_set_filter(ops, "nine")
    without = 1 << 8
    assert program["nine"](*range(1, 10)) - without == sum(i << 9 - i for i in range(1, 10))
    ops.detach()
    program.unload()


def test_ft77_it_may_return_in_the_functions_place(direct, ops):
    program = basic()
    on(ops, program, "leaf", direct, "direct_skips")
    assert program["twice"](1) == 77
    ops.detach()
    program.unload()


def test_ft77_modify_switches_all_sites(program, direct, ops):
    count = variable(direct, "direct_count")
    on(ops, program, "leaf", direct, "direct_counts")
    count.value = 0
    modify_ftrace_direct(ops, address(direct, "direct_doubles"))
    program["leaf"](20)
    assert count.value == 0
    fails(errno.EINVAL, unregister_ftrace_direct, ops, address(direct, "direct_counts"))
    unregister_ftrace_direct(ops, address(direct, "direct_doubles"))
    fails(errno.EINVAL, modify_ftrace_direct, ops, address(direct, "direct_doubles"))


def test_ft77_together_with_callbacks_and_fprobes(program, direct, ops):
    seen = []
    count = variable(direct, "direct_count")
    count.value = 0
    on(ops, program, "leaf", direct, "direct_counts")
    note = ftrace_ops(lambda *hit: seen.append("ops"), FTRACE_OPS_FL_SAVE_REGS)
    ftrace_set_filter(note, "leaf")
    register_ftrace_function(note)
    with fprobe.attach(
        "leaf", entry=lambda *hit: seen.append("entry"), exit=lambda fp, ip, ret, regs, data: seen.append(regs.ax)
    ):
        assert program["twice"](1) == 3
    unregister_ftrace_function(note)
    assert seen == ["entry", "ops", 2, "entry", "ops", 3] and count.value == 2


def test_ft77_errors(program, direct, ops):
    counts = address(direct, "direct_counts")
    fails(errno.EINVAL, register_ftrace_direct, ops, counts)  # never used, without a filter
    fails(errno.EINVAL, unregister_ftrace_direct, ops, counts)
    ftrace_set_filter(ops, "l*")
    fails(errno.EINVAL, register_ftrace_direct, ops, 0)
    register_ftrace_direct(ops, counts)
    fails(errno.EINVAL, register_ftrace_direct, ops, counts)
    other = ftrace_ops()
    ftrace_set_filter(other, "leaf")
    fails(errno.EBUSY, register_ftrace_direct, other, counts)
    ftrace_set_filter(other, "other", reset=True)
    register_ftrace_direct(other, counts)
    fails(errno.EBUSY, ftrace_set_filter, other, "leaf")
    assert not is_patched(program, "nine") and program["leaf"](1) == 2
    unregister_ftrace_direct(other, counts, free_filters=True)
    assert other.func_hash.for_everything
    called = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(called, "twice")
    fails(errno.EINVAL, register_ftrace_direct, called, counts)  # it has a func


def test_ft45_no_direct_function_where_an_ops_modifies_ip_and_the_other_way_round(program, direct, ops):
    modifies = ftrace_ops(lambda *hit: None, FTRACE_OPS_FL_IPMODIFY)
    ftrace_set_filter(modifies, "leaf")
    register_ftrace_function(modifies)
    fails(errno.EBUSY, on, ops, program, "leaf", direct, "direct_counts")
    assert ops.func is None and not ops.enabled
    unregister_ftrace_function(modifies)
    on(ops, program, "leaf", direct, "direct_counts")
    fails(errno.EBUSY, register_ftrace_function, modifies)


def test_ft77_a_dead_ftrace_refuses(program, direct, ops, monkeypatch):
    ftrace_set_filter(ops, "leaf")
    monkeypatch.setattr(tracer(), "dead", True)
    fails(errno.ENODEV, register_ftrace_direct, ops, address(direct, "direct_counts"))
    assert ops.func is None


def test_detach_all_takes_direct_functions_off(program, direct, ops):
    on(ops, program, "leaf", direct, "direct_counts")
    detach_all()
    assert not ops.enabled and ops.direct_call == 0


def test_ft74_ft75_listed_with_d_and_the_direct_function(program, direct, ops):
    on(ops, program, "leaf", direct, "direct_counts")
    first, second = enabled_functions().splitlines()
    assert first.startswith(f"leaf [{program.name}] (1)     D   M \ttramp: 0x")
    assert second == f"\tdirect-->direct_counts+0x0/0x{direct.symbol('direct_counts').size:x} [direct]"
    ops.detach()
    line = next(line for line in touched_functions().splitlines() if line.startswith(f"leaf [{program.name}]"))
    assert line == f"leaf [{program.name}] (0)         M  ->ftrace_stub+0x0/0x0"


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.stress)])
def test_ft77_while_threads_call_the_direct_function_comes_goes_and_changes(program, direct, ops, times):
    stop, results = threading.Event(), set()

    def call():
        while not stop.is_set():
            results.add(program["loop"](50))

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(times):
        on(ops, program, "leaf", direct, "direct_counts")
        program["loop"](5)
        unregister_ftrace_direct(ops, address(direct, "direct_counts"))
    stop.set()
    for thread in threads:
        thread.join()
    assert results == {50}


def test_ft77_floating_point_arguments_and_results_are_kept(direct, ops):
    module = sandbox.load(
        "define double @blend(double %a, double %b, i64 %n) noinline {\n"
        "  %x = fmul double %a, 2.0\n  %y = fadd double %x, %b\n  ret double %y\n}\n",
        name="floats",
    )
    on(ops, module, "blend", direct, "direct_counts")
    with fprobe.attach("blend", entry=lambda *hit: 0, exit=lambda *hit: None):
        assert module["blend"](1.25, 0.5, 7) == 3.0
    ops.detach()
    module.unload()
