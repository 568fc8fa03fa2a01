"""Statements about fprobes that no other test is about (docs/conformance.md)."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import pytest
from programs import basic, site_of

import fprobe
from ftrace.hit.dispatch import pt_regs
from ftrace.ops import FTRACE_OPS_FL_RECURSION


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
    note = lambda *given: seen.append(given) and None  # noqa: E731
    with fprobe.attach("leaf", entry=note, exit=note, entry_data_size=8) as probe:
        program["leaf"](1)
    assert len(seen) == 2
    for fp, entry_ip, ret_ip, regs, data in seen:
        assert fp is probe.fp and entry_ip == site_of(program, "leaf") and isinstance(ret_ip, int)
        assert type(regs) is pt_regs.ctypes and isinstance(data, memoryview) and not data.readonly


@pytest.mark.parametrize("assisted", [False, True])
def test_fp24_what_the_assist_layer_rejects_is_not_counted(program, assisted):
    seen = []
    fp = fprobe.fprobe(lambda fp, ip, ret, regs, data: seen.append(program["leaf"](1)) and None)
    fp.ops.flags |= FTRACE_OPS_FL_RECURSION * assisted
    fprobe.register_fprobe(fp, "leaf")
    program["leaf"](1)
    fprobe.unregister_fprobe(fp)
    assert seen == [2, 2] and fp.nmissed == (0 if assisted else 1)
