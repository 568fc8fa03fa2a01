"""Integers that native fields receive are checked by name when a probe is registered, and a refusal loses nothing."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import errno

import pytest
from programs import basic

import fprobe
import kprobes
from ftrace.core import direct
from ftrace.core.ops import ftrace_ops, ftrace_set_filter, ftrace_set_filter_ips, register_ftrace_function
from ftrace.core.tracer import tracer
from sandbox.native import u64

WRONG = ["1234", 8.5, None, b"1"]


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


def refused(name: str, value: object, register) -> None:
    """TypeError for what is no integer, OSError for one out of range; either names the field and the value."""
    with pytest.raises((TypeError, OSError)) as caught:
        register()
    assert isinstance(caught.value, TypeError) == (not isinstance(value, int)), caught.value
    assert name in str(caught.value) and repr(value) in str(caught.value)


def fprobe_with(**fields):
    return fprobe.fprobe(lambda *hit: 0, lambda *hit: None, **fields)


@pytest.mark.parametrize("name, values", [
    ("thread", [*WRONG, 1 << 32, 1 << 31, -1]),
    ("max_hits", [*WRONG, 1 << 64, 1 << 63, -1]),
    ("nr_maxactive", [*WRONG, 1 << 31, -1]),
    ("entry_data_size", [*WRONG, 1 << 32, -1]),
    ("flags", [*WRONG, 1 << 32, -1]),
])  # fmt: skip
def test_fields_of_an_fprobe_and_no_counter_line_is_lost(program, name, values):
    lines = tracer().table.lines
    before = lines.in_use
    for value in values:
        fp = fprobe_with(**{name: value})
        refused(name, value, lambda fp=fp: fprobe.register_fprobe(fp, "leaf"))
        assert not fp.registered
    assert lines.in_use == before


@pytest.mark.parametrize("name, values", [
    ("nr_maxactive", [*WRONG, 1 << 31, -(1 << 31) - 1]),
    ("entry_data_size", [*WRONG, 1 << 64, -(1 << 64)]),
])  # fmt: skip
def test_fields_that_only_an_exit_handler_uses(program, name, values):
    """They were not looked at without one."""
    for value in values:
        fp = fprobe.fprobe(lambda *hit: 0, **{name: value})
        refused(name, value, lambda fp=fp: fprobe.register_fprobe(fp, "leaf"))


def test_the_greatest_values_are_accepted(program):
    fp = fprobe_with(thread=(1 << 31) - 1, max_hits=(1 << 63) - 1, nr_maxactive=(1 << 31) - 1)
    fprobe.register_fprobe(fp, "leaf")
    program["leaf"](1)
    assert fp.hits == 0  # another thread's
    fprobe.unregister_fprobe(fp)


def test_flags_of_a_registered_fprobe(program):
    fp = fprobe_with()
    fprobe.register_fprobe(fp, "leaf")
    for value in ["1", 1 << 32, -1]:
        refused("flags", value, lambda value=value: setattr(fp, "flags", value))
    program["leaf"](1)
    assert fp.hits == 1
    fprobe.unregister_fprobe(fp)


@pytest.mark.parametrize("value", [*WRONG, -1, 1 << 64])
def test_addresses_of_an_fprobe(program, value):
    refused("address", value, lambda: fprobe.register_fprobe_ips(fprobe_with(), [value]))


@pytest.mark.parametrize("value", ["1", 1.0, 0, 2, -1])
def test_num(program, value):
    refused("num", value, lambda: fprobe.register_fprobe_syms(fprobe_with(), ["leaf"], value))
    refused("num", value, lambda: fprobe.register_fprobe_ips(fprobe_with(), [program["leaf"].address], value))
    if value != 2:
        refused("num", value, lambda: kprobes.register_kprobes([kprobes.kprobe(symbol_name="leaf")], value))
        refused("num", value, lambda: kprobes.register_kretprobes([kprobes.kretprobe(symbol_name="leaf")], value))


@pytest.mark.parametrize("func", [0, -1, 8, 1 << 64])
def test_the_address_of_a_callback_is_that_of_code(program, func):
    """ftrace_ops(0) was accepted, and the first hit called address 0."""
    ops = ftrace_ops(func)
    ftrace_set_filter(ops, "leaf")
    with pytest.raises(OSError, match="func") as caught:
        register_ftrace_function(ops)
    assert caught.value.errno == errno.EINVAL and not ops.enabled
    assert program["leaf"](1) == program["leaf"](1)


@pytest.mark.parametrize("func", ["f", 8.5, b"x"])
def test_what_is_no_callback(program, func):
    with pytest.raises(TypeError, match="func is"):
        register_ftrace_function(ftrace_ops(func))


@pytest.mark.parametrize("value", [*WRONG, -1, 1 << 64])
def test_flags_and_ips_of_an_ftrace_ops(program, value):
    refused("flags", value, lambda: register_ftrace_function(ftrace_ops(print, value)))
    refused("ip", value, lambda: ftrace_set_filter_ips(ftrace_ops(print), [value]))


@pytest.mark.parametrize("value", ["1", 0, 8, -1, 1 << 64])
def test_direct_functions(program, value):
    ops = ftrace_ops()
    ftrace_set_filter(ops, "leaf")
    with pytest.raises((TypeError, OSError), match="address is"):
        direct.register_ftrace_direct(ops, value)
    assert ops.func is None and not ops.enabled


@pytest.mark.parametrize("name, values", [
    ("offset", [*WRONG, 1 << 31, -1 << 31, 1 << 64]),
    ("flags", [*WRONG, -1, 1 << 32]),
])  # fmt: skip
def test_fields_of_a_kprobe_and_of_a_kretprobe(program, name, values):
    for value in values:
        for register, made in (
            (kprobes.register_kprobe, kprobes.kprobe(symbol_name="leaf", **{name: value})),
            (kprobes.register_kretprobe, kprobes.kretprobe(symbol_name="leaf", **{name: value})),
        ):
            refused(name, value, lambda register=register, made=made: register(made))


@pytest.mark.parametrize("value", ["1", 8.5, -1, 1 << 64])
def test_the_address_of_a_kprobe(program, value):
    refused("addr", value, lambda: kprobes.register_kprobe(kprobes.kprobe(addr=value)))
    refused("addr", value, lambda: kprobes.register_kretprobe(kprobes.kretprobe(addr=value)))


@pytest.mark.parametrize("name, values", [
    ("maxactive", [*WRONG, 1 << 31, 1 << 64]),
    ("data_size", [*WRONG, -1, 4097, 1 << 64]),
])  # fmt: skip
def test_sizes_of_a_kretprobe(program, name, values):
    for value in values:
        rp = kprobes.kretprobe(symbol_name="leaf", handler=lambda ri, regs: None, **{name: value})
        refused(name, value, lambda rp=rp: kprobes.register_kretprobe(rp))
        assert not rp.registered


@kprobes.native
def first_word(ri, regs):
    ri.data[0] = regs.di


@kprobes.native
def third_word(ri, regs):
    first_word(ri, regs)
    ri.data[2] += 1


@kprobes.native
def any_word(ri, regs):
    ri.data[regs.ax & 7] = 1


@pytest.mark.parametrize(
    "handler, data_size, enough", [(first_word, 0, 8), (first_word, 7, 8), (third_word, 16, 24), (any_word, 0, 64)]
)
def test_native_handlers_use_no_more_data_than_an_instance_has(program, handler, data_size, enough):
    """ri.data of a kretprobe without data_size is another instance's memory."""
    for role in ("handler", "entry_handler"):
        rp = kprobes.kretprobe(symbol_name="leaf", data_size=data_size, **{role: handler})
        with pytest.raises(OSError, match=f"data_size is {data_size}, but {handler.name} writes ") as caught:
            kprobes.register_kretprobe(rp)
        assert caught.value.errno == errno.EINVAL and not rp.registered
        rp.data_size = enough
        kprobes.register_kretprobe(rp)
        program["leaf"](1)
        kprobes.unregister_kretprobe(rp)


@kprobes.native
def second_word_read(ri, regs):
    seen[0] |= ri.data[1]
    seen[1] += 1


seen = fprobe.Array(u64, 2, shared=True)


@pytest.mark.parametrize("flavour", ["none", "fentry"])
def test_data_that_an_instance_does_not_have_reads_as_0(flavour):
    module, before = basic(flavour=flavour), seen[1]
    for other in (None, lambda ri, regs: None):  # an instance on the shadow stack, and one of the kretprobe's own
        rp = kprobes.kretprobe(
            addr=module["factorial"].address, handler=second_word_read, entry_handler=other, maxactive=9
        )
        kprobes.register_kretprobe(rp)
        assert module["factorial"](4) == 24
        assert seen[0] == 0
        kprobes.unregister_kretprobe(rp)
    assert seen[1] - before == 8
    module.unload()


def test_a_python_handler_has_no_data_without_data_size(program):
    seen = []
    with kprobes.attach_return(program["leaf"].address, lambda ri, regs: seen.append(ri.data)):
        program["leaf"](1)
    assert seen == [None]
