"""Clauses of the statements about kprobes that no other test is about (docs/conformance.md)."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import ctypes
import errno
import logging

import pytest
from isolation import isolated
from programs import basic, is_patched, site_bytes

import kprobes
from ftrace.core import ops as ftrace
from ftrace.core.filters.lookup import enabled_functions
from ftrace.core.ops import ftrace_ops
from ftrace.core.ops_flags import FTRACE_OPS_FL_IPMODIFY
from kprobes import optimization
from kprobes.events.debugfs import write_kprobes_enabled
from kprobes.hit import records
from sandbox.x86_64.instruction import MAX_INSN_SIZE


def load():
    """The basic functions; probes stay breakpoints."""
    optimization.set_kprobes_optimization(0)
    return basic()


def refused(call, *arguments):
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def byte_at(address):
    return ctypes.string_at(address, 1)


def test_kp3_the_constants():
    assert (records.HIT_ACTIVE, records.HIT_SS, records.REENTER, records.HIT_SSDONE) == (1, 2, 4, 8)
    assert MAX_INSN_SIZE == 15


@isolated(shared=True)
def test_kp6_the_offset_counts_from_an_address_too_and_may_be_negative():
    module = load()
    leaf = module.symbol("leaf").address
    for given, offset in ((leaf, 5), (leaf + 9, -4)):
        p = kprobes.kprobe(addr=given, offset=offset)
        kprobes.register_kprobe(p)
        assert p.addr == leaf + 5
        kprobes.unregister_kprobe(p)
    assert refused(kprobes.register_kprobe, kprobes.kprobe(addr=leaf, offset=1 << 64)) == errno.ENOENT


@isolated(shared=True)
def test_kp9_kp58_a_batch_that_was_undone_leaves_addr_and_disabled():
    load()
    good = kprobes.kprobe(symbol_name="leaf", offset=5)
    bad = kprobes.kprobe(symbol_name="leaf", offset=6)
    assert refused(kprobes.register_kprobes, [good, bad]) == errno.EILSEQ
    assert good.addr == bad.addr - 1 and good.flags & kprobes.KPROBE_FLAG_DISABLED and not good.registered
    good.symbol_name, good.offset = None, 0
    kprobes.register_kprobe(good)
    assert good.is_off and byte_at(good.addr) != b"\xcc"
    kprobes.unregister_kprobe(good)


@isolated(shared=True)
def test_kp13_kp14_data_the_gate_page_and_breakpoints_of_others():
    from sandbox.memory.mappings import write_through_kernel

    module = load()
    data = next(symbol.address for symbol in module.data if symbol.name == "sink")
    assert refused(kprobes.register_kprobe, kprobes.kprobe(addr=data)) == errno.EINVAL
    assert refused(kprobes.register_kprobe, kprobes.kprobe(addr=0xFFFF_FFFF_FF60_0000)) == errno.ENOENT
    address = module.symbol("leaf").address + 5
    kept = byte_at(address)
    write_through_kernel(address, b"\xcc")
    assert refused(kprobes.register_kprobe, kprobes.kprobe(addr=address)) == errno.EILSEQ  # KP-18, 6.12
    write_through_kernel(address, kept)


@isolated(shared=True)
def test_kp36_who_returns_non_zero_and_leaves_ip_goes_on_behind_the_first_byte():
    """`48 8d 47 01` without its first byte adds in 32 bits."""
    module = load()
    posts = []
    wide = (1 << 32) + 5
    assert module["leaf"](wide) == wide + 1
    with kprobes.attach("leaf+5", pre=lambda p, regs: 1, post=lambda p, regs, flags: posts.append(1)):
        assert module["leaf"](wide) == 6
    assert not posts


@isolated(shared=True)
def test_kp37_a_post_handler_that_comes_to_a_boosted_place_is_called():
    module = load()
    order = []
    with kprobes.attach("leaf+5", pre=lambda p, regs: order.append("pre")):
        module["leaf"](1)
        with kprobes.attach("leaf+5", post=lambda p, regs, flags: order.append((regs.ip - p.addr, flags))):
            assert module["leaf"](1) == 2
        module["leaf"](1)
    assert order == ["pre", "pre", (4, 0), "pre"]


@isolated(shared=True)
def test_kp41_kp49_the_place_is_disarmed_when_all_its_probes_are_disabled():
    module = load()
    hits = []
    probes = [
        kprobes.kprobe(symbol_name="leaf", offset=5, pre_handler=lambda p, regs, n=n: hits.append(n)) for n in range(2)
    ]
    kprobes.register_kprobes(probes)
    address = probes[0].addr
    for p, armed in zip(probes, (True, False), strict=True):
        kprobes.disable_kprobe(p)
        assert (byte_at(address) == b"\xcc") is armed
        module["leaf"](1)
    assert hits == [1]
    kprobes.enable_kprobe(probes[1])
    assert byte_at(address) == b"\xcc"
    module["leaf"](1)
    assert hits == [1, 1]
    kprobes.register_kprobe(late := kprobes.kprobe(symbol_name="leaf", offset=5))
    kprobes.unregister_kprobes([*probes, late])
    assert byte_at(address) != b"\xcc"


@isolated(shared=True)
@pytest.mark.parametrize("offset", [0, 5])
def test_kp48_an_enabled_probe_arms_a_place_whose_probes_are_all_disabled(offset):
    module = load()
    hits = []
    off = kprobes.kprobe(symbol_name="leaf", offset=offset, flags=kprobes.KPROBE_FLAG_DISABLED)
    kprobes.register_kprobe(off)
    original = byte_at(off.addr)
    with kprobes.attach(off.addr, pre=lambda p, regs: hits.append(1)):
        assert byte_at(off.addr) != original and off.is_off
        module["leaf"](1)
    assert hits == [1] and byte_at(off.addr) == original
    kprobes.unregister_kprobe(off)


@isolated(shared=True)
def test_kp55_kp96_a_probe_that_is_gone_can_be_disabled_and_not_enabled():
    module = load()
    p = kprobes.kprobe(symbol_name="leaf", offset=5)
    kprobes.register_kprobe(p)
    module.unload()
    kprobes.disable_kprobe(p)
    assert p.flags & kprobes.KPROBE_FLAG_GONE and refused(kprobes.enable_kprobe, p) == errno.EINVAL
    assert "[GONE]" in kprobes.kprobes_list() and "DISABLED" not in kprobes.kprobes_list()
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp50_kp51_one_ops_for_all_probes_of_a_kind_and_one_place_in_it_for_each_function():
    module = load()
    assert enabled_functions() == ""
    plain = [kprobes.kprobe(symbol_name=name, pre_handler=lambda p, regs: 0) for name in ("leaf", "other")]
    posts = [kprobes.kprobe(symbol_name="twice", post_handler=lambda p, regs, flags: None) for _ in range(2)]
    kprobes.register_kprobes([*plain, *posts])
    lines = {line.split(" ")[0]: line for line in enabled_functions().splitlines()}
    assert set(lines) == {"leaf", "other", "twice"}
    assert all("(1) R" in line for line in lines.values())
    assert " I " in lines["twice"][:40] and " I " not in lines["leaf"][:30]
    assert module["twice"](1) == 3
    kprobes.unregister_kprobe(posts[0])
    assert is_patched(module, "twice")
    kprobes.unregister_kprobes([*plain, posts[1]])
    assert not any(is_patched(module, name) for name in ("leaf", "other", "twice"))


@isolated(shared=True)
def test_kp55_what_arming_raises_leaves_the_probe_disabled():
    module = load()
    p = kprobes.kprobe(symbol_name="leaf", post_handler=lambda p, regs, flags: None, flags=kprobes.KPROBE_FLAG_DISABLED)
    kprobes.register_kprobe(p)
    assert site_bytes(module, "leaf")[0] == 0x0F
    taken = ftrace_ops(lambda *hit: None, FTRACE_OPS_FL_IPMODIFY)
    ftrace.ftrace_set_filter(taken, "leaf")
    ftrace.register_ftrace_function(taken)
    assert refused(kprobes.enable_kprobe, p) == errno.EBUSY
    assert p.is_off and p.registered
    ftrace.unregister_ftrace_function(taken)
    kprobes.enable_kprobe(p)
    assert not p.is_off and module["leaf"](1) == 2
    kprobes.unregister_kprobe(p)


@isolated(shared=True)
def test_kp59_the_global_switch_says_so_once():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("kprobes").addHandler(handler)
    logging.getLogger("kprobes").setLevel(logging.INFO)
    load()
    with kprobes.attach("leaf+5") as probe:
        for word in ("0", "0", "1", "1"):
            write_kprobes_enabled(word)
            assert not probe.p.is_off
    assert said == ["Kprobes globally disabled", "Kprobes globally enabled"]


@isolated(shared=True)
def test_kp74_kp75_handlers_of_the_probe_inside_are_taken_off_and_impossible_sizes_refused():
    module = load()
    seen = []
    rp = kprobes.kretprobe(symbol_name="leaf", handler=lambda ri, regs: seen.append(regs.ax))
    rp.kp.pre_handler = lambda p, regs: seen.append("pre")
    rp.kp.post_handler = lambda p, regs, flags: seen.append("post")
    kprobes.register_kretprobe(rp)
    assert rp.kp.pre_handler is rp.kp.post_handler is None
    assert module["leaf"](1) == 2 and seen == [2]
    assert " I " not in enabled_functions()[:40]
    kprobes.unregister_kretprobe(rp)
    for size in (-1, 4097):
        assert refused(kprobes.register_kretprobe, kprobes.kretprobe(symbol_name="leaf", data_size=size)) == errno.E2BIG


@isolated(shared=True)
def test_kp84_kp58_a_batch_of_return_probes_is_all_or_nothing():
    load()
    good, bad = kprobes.kretprobe(symbol_name="leaf"), kprobes.kretprobe(symbol_name="leaf", offset=5)
    assert refused(kprobes.register_kretprobes, [good, bad]) == errno.EINVAL
    assert not good.registered and kprobes.kprobes_list() == ""
    kprobes.unregister_kretprobes([good, bad], 0)
