"""What belongs to one process does not go to another: addresses that are pickled would be called there."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
from sampled import sampled

import fprobe
import kprobes
import sandbox
from ftrace.core.ops import ftrace_ops
from ftrace.ring_buffer.buffer import Buffer
from sandbox.native import u64

PROGRAM = "define i64 @leaf(i64 %x) { %r = add i64 %x, 1  ret i64 %r }"


@fprobe.native
def handler(fp, ip, ret_ip, regs, data):
    pass


@pytest.fixture
def program():
    module = sandbox.load(PROGRAM, name="pickled")
    yield module
    module.unload()


OBJECTS = {
    "module": lambda module: module,
    "function": lambda module: module["leaf"],
    "attachment": lambda _: fprobe.attach("leaf", entry=handler),
    "kprobes.attach": lambda _: kprobes.attach("leaf"),
    "kprobes.attach_return": lambda _: kprobes.attach_return("leaf", print),
    "kprobe": lambda _: kprobes.kprobe(symbol_name="leaf"),
    "kretprobe": lambda _: kprobes.kretprobe(symbol_name="leaf"),
    "fprobe": lambda _: fprobe.fprobe(handler),
    "array": lambda _: fprobe.Array(u64, 4),
    "hash": lambda _: fprobe.Hash(u64, u64, 4),
    "variable": lambda _: fprobe.per_task(u64),
    "buffer": lambda _: Buffer("pickled"),
    "ftrace_ops": lambda _: ftrace_ops(),
    "fprobe.Count": lambda _: fprobe.Count(),
    "kprobes.Count": lambda _: kprobes.Count(),
    "record": lambda _: fprobe.Record(8),
    "stat": lambda _: fprobe.Stat(),
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("protocol", sampled(range(pickle.HIGHEST_PROTOCOL + 1), 2))
def test_what_holds_addresses_cannot_be_pickled(program, kind, protocol):
    with pytest.raises(TypeError, match=r"cannot pickle .*: it belongs to this process"):
        pickle.dumps({"object": OBJECTS[kind](program)}, protocol)


@pytest.mark.parametrize("copying", (copy.copy, copy.deepcopy))
@pytest.mark.parametrize("kind", ("kprobe", "kretprobe", "fprobe", "ftrace_ops", "buffer", "stat"))
def test_a_probe_cannot_be_copied(program, kind, copying):
    """A copy would share the native half of its original."""
    with pytest.raises(TypeError, match=r"cannot pickle .*: it belongs to this process"):
        copying(OBJECTS[kind](program))


def test_a_function_is_not_called_at_its_address_by_a_spawned_child(program):
    """It got a raw address, and ended by SIGSEGV."""
    child: Any = multiprocessing.get_context("spawn").Process(target=program["leaf"], args=(4,))
    with pytest.raises(TypeError, match="cannot pickle <Function i64 leaf"):
        child.start()


def test_a_function_is_copied_like_a_python_function(program):
    leaf = program["leaf"]
    assert copy.copy(leaf) is leaf
    assert copy.deepcopy([leaf])[0] is leaf
