"""Statements about fprobes that no other test is about (docs/conformance.md)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import ctypes

import pytest
from programs import basic, site_of

import fprobe
import kprobes
import sandbox
from ftrace.core.ops_flags import FTRACE_OPS_FL_RECURSION
from ftrace.hit.x86_64.pt_regs import pt_regs


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


def test_fp1_the_fields_and_what_they_are_at_first():
    fp = fprobe.fprobe()
    assert fp.entry_handler is None and fp.exit_handler is None
    assert (fp.nmissed, fp.flags, fp.entry_data_size, fp.nr_maxactive) == (0, 0, 0, 0)
    assert fp.ops.flags == 0 and fp.ops.func_hash.for_everything


def test_fp3_what_handlers_are_called_with(program):
    seen = []

    def note(fp, entry_ip, ret_ip, regs, data):
        seen.append((fp, entry_ip, ret_ip, type(regs), isinstance(data, memoryview) and not data.readonly))

    with fprobe.attach("leaf", entry=note, exit=note, entry_data_size=8) as probe:
        program["leaf"](1)
    assert len(seen) == 2
    for fp, entry_ip, ret_ip, kind, writable in seen:
        assert fp is probe.fp and entry_ip == site_of(program, "leaf") and isinstance(ret_ip, int)
        assert kind is pt_regs.ctypes and writable


@pytest.mark.parametrize("assisted", [False, True])
def test_fp24_what_the_assist_layer_rejects_is_not_counted(program, assisted):
    seen = []
    fp = fprobe.fprobe(lambda fp, ip, ret, regs, data: seen.append(program["leaf"](1)) and None)
    fp.ops.flags |= FTRACE_OPS_FL_RECURSION * assisted
    fprobe.register_fprobe(fp, "leaf")
    program["leaf"](1)
    fprobe.unregister_fprobe(fp)
    assert seen == [2, 2] and fp.nmissed == (0 if assisted else 1)


def test_fp2_shared_is_read_at_registration(program):
    seen = []

    def outer(*hit):
        program["other"](1)

    with (
        fprobe.attach("leaf", entry=outer, shared=True),
        fprobe.attach("other", entry=lambda *hit: seen.append(1)) as plain,
    ):
        plain.fp.flags |= fprobe.FPROBE_FL_KPROBE_SHARED
        program["leaf"](1)
    assert seen == [1] and plain.fp.nmissed == 0


def test_fp31_a_disabled_shared_probe_misses_nothing_while_a_kprobe_runs(program):
    """FP-32: in 6.1 it does."""
    with (
        fprobe.attach("leaf", entry=lambda *hit: program["other"](1) and 0, shared=True),
        fprobe.attach("other", entry=lambda *hit: 0, shared=True) as inner,
    ):
        inner.disable()
        program["leaf"](1)
        assert inner.fp.nmissed == 0
        inner.enable()
        program["leaf"](1)
        assert inner.fp.nmissed == 1


LANDING = """
@came_from = global i64 0
define i64 @anchor() { ret i64 0 }
module asm ".globl landing"
module asm ".type landing,@function"
module asm "landing: add $4711, %rax"
module asm "jmp *came_from(%rip)"
module asm ".size landing, .-landing"
"""


@pytest.mark.parametrize("returns", [False, True])
def test_fp5_every_handler_sees_the_same_ret_ip_though_one_replaces_the_slot(program, returns):
    """... and the function returns where the slot says when the last entry handler is done, hooked or not."""
    seen, left = [], []
    landing = sandbox.load(LANDING, name="landing")
    target = landing.symbol("landing").address
    came_from = ctypes.c_uint64.from_address(next(s.address for s in landing.data if s.name == "came_from"))

    def replace(fp, ip, ret_ip, regs, data):
        seen.append(ret_ip)
        came_from.value = ret_ip
        ctypes.c_uint64.from_address(regs.sp).value = target

    exit_ = {"exit": lambda fp, ip, ret_ip, regs, data: left.append(ret_ip)} if returns else {}
    with (
        fprobe.attach("leaf", entry=lambda fp, ip, ret_ip, regs, data: seen.append(ret_ip), **exit_),
        fprobe.attach("leaf", entry=replace),
    ):
        assert program["leaf"](1) == 2 + 4711
    landing.unload()
    assert len(seen) == 2 and seen[0] == seen[1] and left == ([target] if returns else [])


@pytest.mark.parametrize("shared", [False, True])
def test_fp35_kprobes_are_hit_within_the_handler_of_an_fprobe_unless_it_is_shared(program, shared):
    seen = []
    with (
        kprobes.attach("other+5", pre=lambda p, regs: seen.append("kprobe")) as inner,
        fprobe.attach("leaf", entry=lambda *hit: program["other"](1) and 0, shared=shared),
    ):
        assert program["leaf"](1) == 2
        assert inner.missed == int(shared)
    assert seen == ([] if shared else ["kprobe"])
