"""Statements about ftrace that no other test is about (docs/conformance.md)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes
import errno
import os
import threading
import time

import pytest
from isolation import isolated
from programs import BASIC, basic, is_patched, site_bytes, site_of

import fprobe
import sandbox
from ftrace.core import ops as ftrace
from ftrace.core import ops_flags
from ftrace.core.dyn_ftrace.record import MODIFIED, TOUCHED
from ftrace.core.filters.lookup import (
    enabled_functions,
    ftrace_location,
    ftrace_location_range,
    ftrace_lookup_symbols,
    ftrace_text_reserved,
    touched_functions,
)
from ftrace.core.ops import (
    ftrace_free_filter,
    ftrace_get_regs,
    ftrace_ops,
    ftrace_set_filter,
    ftrace_set_notrace,
    register_ftrace_function,
)
from ftrace.core.ops import unregister_ftrace_function as unregister
from ftrace.core.tracer import tracer
from ftrace.tracing.files.sysctl import set_ftrace_enabled
from sandbox.loading.module import ModuleState
from sandbox.x86_64.encoding import NOP5


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


@pytest.fixture
def on_leaf():
    """An ops on leaf, to be registered by the test."""
    ops = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(ops, "leaf")
    yield ops
    if ops.enabled:
        unregister(ops)


def refused(code, call, *arguments):
    with pytest.raises(OSError) as caught:
        call(*arguments)
    assert caught.value.errno == code


def test_ft1_five_bytes_at_the_head_that_are_a_nop_or_a_jump_to_the_functions_stub(program, on_leaf):
    location = tracer().table.location(program.symbol("leaf").address)
    assert location.ip == program.symbol("leaf").address and site_bytes(program, "leaf") == NOP5
    register_ftrace_function(on_leaf)
    patched = site_bytes(program, "leaf")
    target = location.ip + 5 + int.from_bytes(patched[1:], "little", signed=True)
    assert patched[0] == 0xE9 and target in location.block.stub_text


def test_ft8_text_reserved(program):
    ip = site_of(program, "leaf")
    assert ftrace_text_reserved(ip + 4, ip + 4) and ftrace_text_reserved(ip - 1, ip)
    assert not ftrace_text_reserved(ip + 5, ip + 5)
    assert ftrace_location_range(ip, ip) == ip == ftrace_location(ip + 3) and ftrace_location(ip + 5) == 0


def test_ft9_a_record_counts_the_ops_that_select_it(program, on_leaf):
    location = tracer().table.location(site_of(program, "leaf"))
    everything = ftrace_ops(lambda *hit: None)
    counts = []
    for ops in (on_leaf, everything):
        register_ftrace_function(ops)
        counts.append(tracer().record_at(location).flags & 0x7FFFF)
    set_ftrace_enabled(0)
    assert tracer().record_at(location).flags >> 31 == 0 and tracer().record_at(location).count == 2
    set_ftrace_enabled(1)
    assert tracer().record_at(location).flags >> 31 == 1
    for ops in (on_leaf, everything):
        unregister(ops)
        counts.append(tracer().record_at(location).flags & 0x7FFFF)
    assert counts == [1, 2, 1, 0]


@isolated
def test_ft10_sites_that_stay_as_they_are_are_left_alone():
    """What somebody has written there meanwhile is not even noticed."""
    module = basic()
    ops = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(ops, "leaf")
    register_ftrace_function(ops)
    jump = site_bytes(module, "leaf")
    with open("/proc/self/mem", "r+b", buffering=0) as memory:  # noqa: PTH123
        os.pwrite(memory.fileno(), b"\xcc", site_of(module, "leaf"))
        ftrace_set_filter(ops, "other")
        assert is_patched(module, "other") and site_bytes(module, "leaf")[0] == 0xCC
        os.pwrite(memory.fileno(), jump, site_of(module, "leaf"))
    unregister(ops)


@pytest.mark.parametrize("flags", [0, ftrace.FTRACE_OPS_FL_SAVE_REGS, ftrace.FTRACE_OPS_FL_IPMODIFY])
def test_ft11_ft13_after_the_last_unregister_no_record_has_flags_or_a_count(program, flags):
    lasting = TOUCHED | MODIFIED
    first, second = (ftrace_ops(lambda *hit: None, flags), ftrace_ops(lambda *hit: None))
    for ops in (first, second):
        ftrace_set_filter(ops, "l*")
        register_ftrace_function(ops)
    records = [tracer().record_at(location) for location in first.selection().each()]
    assert all(record.flags & ~lasting for record in records)
    for ops in (first, second):
        unregister(ops)
    records = [tracer().record_at(location) for location in tracer().table.everything().each()]
    assert [record.flags & ~lasting for record in records] == [0] * len(records)


def test_ft14_only_func_is_mandatory(program):
    ops = ftrace_ops()
    assert (ops.func, ops.flags, ops.private) == (None, 0, None) and ops.func_hash is ops.local_hash
    refused(errno.EINVAL, register_ftrace_function, ops)
    ops.func = lambda *hit: None
    register_ftrace_function(ops)
    unregister(ops)


def test_ft16_the_flag_bits():
    names = (
        "ENABLED DYNAMIC SAVE_REGS SAVE_REGS_IF_SUPPORTED RECURSION STUB INITIALIZED DELETED ADDING REMOVING MODIFYING "
        "ALLOC_TRAMP IPMODIFY PID RCU TRACE_ARRAY PERMANENT DIRECT SUBOP"
    )
    for bit, name in enumerate(names.split()):
        assert getattr(ops_flags, f"FTRACE_OPS_FL_{name}") == 1 << bit


def test_ft20_a_stub_ops_is_never_called(program):
    seen = []
    for others in (0, 1):
        stub = ftrace_ops(lambda *hit: seen.append("stub"), ftrace.FTRACE_OPS_FL_STUB)
        plain = ftrace_ops(lambda *hit: seen.append("plain"))
        registered = [stub, plain][: 1 + others]
        for ops in registered:
            ftrace_set_filter(ops, "leaf")
            register_ftrace_function(ops)
        program["leaf"](1)
        for ops in registered:
            unregister(ops)
    assert seen == ["plain"]


@pytest.mark.parametrize("flags", [0, ftrace.FTRACE_OPS_FL_RECURSION, ftrace.FTRACE_OPS_FL_RCU])
def test_ft21_ft42_an_ops_alone_is_under_the_lists_lock_only_if_it_asks(program, flags):
    """The lock allows one level of recursion; without it the callback has to stop by itself."""
    seen = []

    def callback(*hit):
        seen.append(1)
        if len(seen) < 6:
            program["leaf"](1)

    ops = ftrace_ops(callback, flags)
    ftrace_set_filter(ops, "leaf")
    register_ftrace_function(ops)
    program["leaf"](1)
    unregister(ops)
    assert len(seen) == (2 if flags else 6)


def test_ft22_attributes_set_later_have_no_effect(program):
    seen = []
    ops = ftrace_ops(lambda *hit: seen.append(ftrace_get_regs(hit[3])))
    ftrace_set_filter(ops, "leaf")
    register_ftrace_function(ops)
    ops.flags |= ftrace.FTRACE_OPS_FL_SAVE_REGS
    program["leaf"](1)
    unregister(ops)
    register_ftrace_function(ops)
    program["leaf"](1)
    unregister(ops)
    assert seen[0] is None and seen[1] is not None


def test_ft19_ft40_unregistering_waits_for_the_callback(program):
    entered, left = threading.Event(), []

    def callback(*hit):
        entered.set()
        time.sleep(0.05)
        left.append(1)

    ops = ftrace_ops(callback)
    ftrace_set_filter(ops, "leaf")
    register_ftrace_function(ops)
    thread = threading.Thread(target=program["leaf"], args=(1,))
    thread.start()
    assert entered.wait(30)
    unregister(ops)
    assert left == [1]
    thread.join(30)
    program["leaf"](1)
    assert left == [1]


def test_ft24_a_pattern_is_evaluated_once(program):
    """Functions that come later are for an empty filter only."""
    seen = []
    patterned, unfiltered, excluding = (ftrace_ops(lambda ip, *rest, n=n: seen.append((n, ip))) for n in range(3))
    ftrace_set_filter(patterned, "l*")
    ftrace_set_notrace(excluding, "l*")
    for ops in (patterned, unfiltered, excluding):
        register_ftrace_function(ops)
    later = sandbox.load("define void @later() { ret void }", name="later")
    later["later"]()
    assert sorted(seen) == [(1, site_of(later, "later")), (2, site_of(later, "later"))]
    for ops in (patterned, unfiltered, excluding):
        unregister(ops)
    later.unload()


def test_ft30_an_ops_whose_filter_was_freed_can_be_registered_again(program, on_leaf):
    ftrace_set_notrace(on_leaf, "other")
    register_ftrace_function(on_leaf)
    unregister(on_leaf)
    ftrace_free_filter(on_leaf)
    register_ftrace_function(on_leaf)
    assert is_patched(program, "leaf") and is_patched(program, "other")


def test_ft17_without_save_regs_the_arguments_are_there(program):
    seen = []

    def callback(ip, parent_ip, ops, fregs):
        arguments = (fregs.di, fregs.si, fregs.dx, fregs.cx, fregs.r8, fregs.r9)
        slot = ctypes.c_uint64.from_address(fregs.sp).value
        seen.append((ftrace_get_regs(fregs), arguments, fregs.ip - ip, slot == parent_ip))

    ops = ftrace_ops(callback)
    ftrace_set_filter(ops, "nine")
    register_ftrace_function(ops)
    program["nine"](*range(1, 10))
    unregister(ops)
    assert seen == [(None, (1, 2, 3, 4, 5, 6), 5, True)]


@pytest.mark.parametrize("returns", [False, True])
def test_ft48_what_a_handler_writes_to_sp_and_orig_ax_is_ignored(program, returns):
    left = []

    def entry(fp, ip, ret_ip, regs, data):
        assert (regs.cs, regs.ss, regs.orig_ax) == (0x33, 0x2B, 0)
        regs.sp, regs.orig_ax, regs.cs = 0x5678, 0x1234, 0

    exit_ = {"exit": lambda fp, ip, ret, regs, data: left.append(regs.ax)} if returns else {}
    with fprobe.attach("leaf", entry=entry, **exit_) as probe:
        assert program["twice"](1) == 3
    assert left == ([2, 3] if returns else []) and probe.fp.errors.first is None


def test_ft36_ft39_fp20_fp43_what_the_kernel_warns_of_is_raised_and_not_logged(program, on_leaf, caplog):
    fp = fprobe.fprobe(lambda *hit: 0)
    refused(errno.EBUSY, unregister, on_leaf)
    register_ftrace_function(on_leaf)
    refused(errno.EBUSY, register_ftrace_function, on_leaf)
    fprobe.register_fprobe(fp, "other")
    refused(errno.EBUSY, fprobe.register_fprobe, fp, "other")
    fprobe.unregister_fprobe(fp)
    refused(errno.EBUSY, fprobe.unregister_fprobe, fp)
    assert not caplog.records and is_patched(program, "leaf") and not is_patched(program, "other")


def test_ft41_ft12_a_trampoline_of_its_own_while_an_ops_is_alone(program, on_leaf):
    register_ftrace_function(on_leaf)
    assert "\ttramp: 0x" in enabled_functions()
    second = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(second, "leaf")
    register_ftrace_function(second)
    assert "\ttramp" not in enabled_functions() and " ->arch_ftrace_ops_list_func+0x0/0x" in enabled_functions()
    unregister(on_leaf)
    assert "\ttramp: 0x" in enabled_functions()
    unregister(second)


def test_ft46_while_filters_change_a_callback_sees_only_functions_of_its_filters(program):
    foreign, stop = [], threading.Event()
    allowed = {site_of(program, "leaf"), site_of(program, "other")}
    ops = ftrace_ops(lambda ip, *rest: foreign.append(ip) if ip not in allowed else None)
    bystander = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(ops, "leaf")
    ftrace_set_filter(bystander, "twice")

    def call():
        while not stop.is_set():
            for name in ("leaf", "other", "twice", "loop"):
                program[name](3)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    register_ftrace_function(ops)
    for round_ in range(30):
        ftrace_set_filter(ops, "other" if round_ % 2 else "leaf", reset=True)
        register_ftrace_function(bystander)
        ftrace_set_filter(bystander, "loop", reset=True)
        unregister(bystander)
    stop.set()
    for thread in threads:
        thread.join()
    unregister(ops)
    assert foreign == []


def test_ft71_ft72_ftrace_is_ready_before_others_are_told_and_there_until_they_have_been():
    told = []
    ops = ftrace_ops(lambda *hit: None)

    def notifier(event, module):
        if module.name == "arriving":  # it is told of those that other tests have loaded, too
            told.append((event, ftrace_location(site_of(module, "leaf")) != 0, is_patched(module, "leaf")))

    register_ftrace_function(ops)
    sandbox.register_module_notifier(notifier)
    sandbox.load(BASIC, name="arriving").unload()
    sandbox.unregister_module_notifier(notifier)
    unregister(ops)
    assert told == [(event, True, True) for event in (ModuleState.COMING, ModuleState.LIVE, ModuleState.GOING)]


def test_ft75_ft76_what_was_once_touched_or_modified_stays_marked():
    module = basic()
    ops = ftrace_ops(lambda *hit: None, ftrace.FTRACE_OPS_FL_IPMODIFY)
    ftrace_set_filter(ops, "leaf")
    plain = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(plain, "other")
    for each in (ops, plain):
        register_ftrace_function(each)
    here = f"[{module.name}]"
    lines = [line for line in enabled_functions().splitlines() if here in line]
    assert lines[0].startswith(f"leaf {here} (1)   I     M \ttramp: 0x")
    assert lines[1].startswith(f"other {here} (1)           \ttramp: 0x")
    assert [line for line in touched_functions().splitlines() if here in line] == lines
    for each in (ops, plain):
        unregister(each)
    assert [line for line in touched_functions().splitlines() if here in line] == [
        f"leaf {here} (0)         M  ->ftrace_stub+0x0/0x0",
        f"other {here} (0)            ->ftrace_stub+0x0/0x0",
    ]
    register_ftrace_function(plain)
    line = next(line for line in enabled_functions().splitlines() if here in line)
    unregister(plain)
    assert line == lines[1]
    module.unload()
    assert here not in touched_functions()


def test_ft76_ft80_what_is_registered_while_switched_off_is_not_touched_yet():
    module = basic()
    ops = ftrace_ops(lambda *hit: None)
    ftrace_set_filter(ops, "leaf")
    set_ftrace_enabled(0)
    register_ftrace_function(ops)
    assert enabled_functions() == "" and f"[{module.name}]" not in touched_functions()
    set_ftrace_enabled(1)
    assert enabled_functions() and f"leaf [{module.name}]" in touched_functions()
    unregister(ops)
    module.unload()


def test_ft80_what_changes_while_switched_off_shows_when_switched_on(program, on_leaf):
    """Registered, unregistered, filtered, loaded meanwhile; ftrace lives on, where the kernel's would die of the second."""
    other, gone = ftrace_ops(lambda *hit: None), ftrace_ops(lambda *hit: None)
    for ops, name in ((on_leaf, "leaf"), (other, "other"), (gone, "twice")):
        ftrace_set_filter(ops, name, reset=True)
        register_ftrace_function(ops)
    everything = ftrace_ops(lambda *hit: None)
    set_ftrace_enabled(0)
    assert [tracer().record_at(tracer().table.named(name)).count for name in ("leaf", "other", "twice")] == [1, 1, 1]
    unregister(gone)
    ftrace_set_filter(other, "loop", reset=True)
    register_ftrace_function(everything)
    later = sandbox.load("define void @later() { ret void }", name="later")
    assert site_bytes(later, "later") == site_bytes(program, "leaf") == NOP5
    unregister(everything)
    set_ftrace_enabled(1)
    assert is_patched(program, "leaf") and is_patched(program, "loop")
    assert not any(is_patched(program, name) for name in ("other", "twice")) and not is_patched(later, "later")
    unregister(other)
    later.unload()
    assert not tracer().dead


def test_ft78_the_first_function_of_a_name_that_has_a_location(program):
    """Functions without a stub are passed over, and so are those of that name that come later."""
    bare = "define void @samename() {attribute}{{ ret void }}"
    modules = []
    for number, attribute in enumerate(("#0 ", "", "")):
        text = bare.format(attribute=attribute) + ('\nattributes #0 = { "notrace" }' if attribute else "")
        modules.append(sandbox.load(text + "\ndefine void @filler() { ret void }", name=f"same{number}"))
    assert [len(module.sites) for module in modules] == [1, 2, 2]
    assert ftrace_lookup_symbols(["samename"]) == [modules[1].symbol("samename").address]
    fp = fprobe.fprobe()
    fprobe.register_fprobe_syms(fp, ["samename"])
    assert is_patched(modules[1], "samename") and not is_patched(modules[2], "samename")
    fprobe.unregister_fprobe(fp)
    for module in modules[1:]:
        module.unload()
    refused(errno.ESRCH, ftrace_lookup_symbols, ["samename"])
    refused(errno.ENOENT, fprobe.register_fprobe_syms, fp, ["samename"])
    modules[0].unload()


def test_ft78_names_to_addresses(program):
    names = ["leaf", "loop", "other"]
    assert ftrace_lookup_symbols(names) == [program.symbol(name).address for name in names]
    for wrong in (["leaf", "nowhere"], ["leaf", "leaf"]):
        refused(errno.ESRCH, ftrace_lookup_symbols, wrong)
