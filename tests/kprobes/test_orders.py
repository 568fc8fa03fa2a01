"""HAZARDS 10: what has been prepared for one set of probes at an address does not serve another; in every order of steps."""

from __future__ import annotations

import ctypes
from functools import cache

import pytest
from isolation import isolated
from library_calls import LibraryCall, library_calls, one_of_each_kind
from orders import all_orders, check, make_jumps_absorb, prepare, some_orders
from programs import basic
from sampled import in_stress

import sandbox

KPROBES = ("kprobe", "kretprobe")
ALL_KPROBES = (*KPROBES, "second kprobe", "second kretprobe")
WITH_FPROBE = (*KPROBES, "fprobe")

STARTS = {
    "endbr64": "endbr64; lea (%rdi,%rsi), %rax; ret",
    "call": "call 1f; lea (%rdi,%rsi), %rax; ret; 1: ret",
    "jb": "jb 1f; nop; 1: lea (%rdi,%rsi), %rax; ret",
    "jrcxz": "jrcxz 1f; nop; 1: lea (%rdi,%rsi), %rax; ret",
    "push": "push %rbx; mov %rdi, %rbx; lea (%rbx,%rsi), %rax; pop %rbx; ret",
    "xor": "xor %eax, %eax; add %rdi, %rax; add %rsi, %rax; ret",
    "test": "test %edi, %edi; mov %rdi, %rax; je 1f; nop; 1: add %rsi, %rax; ret",
}
"""First instruction -> a function, for those that libraries need not have."""


@cache
def starts() -> dict[str, LibraryCall]:
    """The same as functions of a module without stubs."""
    lines = [".text"]
    for name, code in STARTS.items():
        lines += [f".globl start_{name}", f".type start_{name},@function", f"start_{name}:"]
        lines += [*(part.strip() for part in code.split(";")), f".size start_{name}, .-start_{name}"]
    module = sandbox.load("\n".join(f'module asm "{line}"' for line in lines), name="starts")
    shape = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    found = {}
    for name in STARTS:
        function = shape(module.symbol(f"start_{name}").address)
        found[name] = LibraryCall(f"starts:start_{name}", lambda function=function: function(300, 4))
    return found


def refused(one: LibraryCall, native: bool) -> bool:
    """Whether its handlers would be."""
    return not native and one.name.startswith("libc:")


@pytest.mark.stress
@isolated
def test_a_kprobe_then_a_kretprobe_before_the_optimiser_has_run():
    """Where the jump absorbs instructions its detour is made when it is written, for another set of probes."""
    import kprobes

    prepare(starts()["endbr64"].name, KPROBES, True)
    make_jumps_absorb()
    absorbing = set()
    order = ("register kprobe", "register kretprobe", "optimise", "unregister kprobe", "optimise")
    for name, one in starts().items():
        check(one.call, one.name, [order], True)
        p = kprobes.kprobe(addr=one.address)
        kprobes.register_kprobe(p)
        kprobes.wait_for_kprobe_optimizer()
        absorbing |= {name} if name != "endbr64" and p.place.jump.inner else set()
    assert absorbing >= {"push", "xor"}, absorbing


def places() -> dict[str, LibraryCall]:
    """Functions without stubs, in a module and in libraries, one for each kind of first instruction."""
    of_libraries = one_of_each_kind()
    assert len({kind.partition(",")[0] for kind in of_libraries}) >= 8
    assert any(kind.startswith("rip-relative") for kind in of_libraries)
    return {**starts(), **of_libraries}


@pytest.mark.parametrize("every", [18, in_stress(1)])
@pytest.mark.parametrize("native", [True, in_stress(False)], ids=["native", "python"])
@isolated
def test_orders_at_the_entry_of_functions_without_stubs(native, every):
    """Every eighteenth place with jumps that land on instructions, and others with such that absorb them; or all with both."""
    prepare(starts()["endbr64"].name, ALL_KPROBES, native)
    for absorbing in (False, True):
        if absorbing:
            make_jumps_absorb()
        for kind, one in [*places().items()][absorbing % every :: every]:
            if not refused(one, native):
                check(one.call, one.name, some_orders(ALL_KPROBES, 10, 1, (kind, native, absorbing)), native)


@pytest.mark.parametrize("native", [in_stress(True), False], ids=["native", "python"])
@isolated
def test_orders_at_the_entry_of_a_function_with_a_stub_with_fprobes_too(native):
    module = basic()
    prepare(f"{module.name}:other", WITH_FPROBE, native)
    orders = some_orders(WITH_FPROBE, 10, 8, native)
    check(lambda: module["leaf"](1), f"{module.name}:leaf", orders, native)


@pytest.mark.parametrize("every", [14, in_stress(1)])
@pytest.mark.parametrize("native", [True, in_stress(False)], ids=["native", "python"])
@isolated
def test_orders_at_the_entry_of_library_functions_with_fprobes_too(native, every):
    prepare("libm:nan", WITH_FPROBE, native)
    for kind, one in [*one_of_each_kind().items()][native::every]:
        if not refused(one, native):
            check(one.call, one.name, some_orders(WITH_FPROBE, 8, 1, (kind, native)), native)


# -- all of them --------------------------------------------------------------------------------------------------


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("absorbing", [False, True], ids=["landing", "absorbing"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("part", range(4))
@isolated(timeout=1400)
def test_every_order_at_the_entry_of_functions_without_stubs(part, native, absorbing):
    prepare(starts()["endbr64"].name, ALL_KPROBES, native)
    if absorbing:
        make_jumps_absorb()
    for one in [*places().values()][part::4]:
        if not refused(one, native):
            check(one.call, one.name, all_orders(KPROBES, 5), native)
            check(one.call, one.name, all_orders(ALL_KPROBES, 3), native)
            check(one.call, one.name, some_orders(ALL_KPROBES, 20, 300, one.name), native)


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@isolated(timeout=1400)
def test_every_library_function_that_is_known_here(native):
    prepare(starts()["endbr64"].name, ALL_KPROBES, native)
    for one in library_calls():
        if not refused(one, native):
            check(one.call, one.name, all_orders(KPROBES, 4), native)


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@isolated(timeout=1400)
def test_every_order_at_the_entry_of_library_functions_with_fprobes_too(native):
    prepare("libm:nan", WITH_FPROBE, native)
    for one in one_of_each_kind().values():
        if not refused(one, native):
            check(one.call, one.name, all_orders(WITH_FPROBE, 4), native)


@pytest.mark.stress
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@isolated(timeout=1400)
def test_every_order_at_the_entry_of_a_function_with_a_stub_with_fprobes_too(native):
    module = basic()
    prepare(f"{module.name}:other", WITH_FPROBE, native)
    check(lambda: module["leaf"](1), f"{module.name}:leaf", all_orders(WITH_FPROBE, 5), native)
    check(lambda: module["leaf"](1), f"{module.name}:leaf", some_orders(WITH_FPROBE, 20, 500, 1), native)
