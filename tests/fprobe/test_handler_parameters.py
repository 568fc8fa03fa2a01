"""A handler that cannot be called with a handler's arguments is refused when it is attached."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import re

import pytest
from programs import basic

import fprobe
import kprobes


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


FPROBE = "(fp, entry_ip, ret_ip, regs, entry_data)"
WRONG = {
    "entry": (lambda: fprobe.attach("leaf", entry=lambda fp, regs: 0), "an entry_handler", FPROBE),
    "exit": (lambda: fprobe.attach("leaf", exit=lambda a, b, c, d, e, f: 0), "an exit_handler", FPROBE),
    "keyword": (lambda: fprobe.attach("leaf", exit=lambda a, b, c, d, e, *, f: 0), "an exit_handler", FPROBE),
    "pre": (lambda: kprobes.attach("leaf", pre=lambda p: 0), "a pre_handler", "(p, regs)"),
    "post": (lambda: kprobes.attach("leaf", post=lambda p, regs: 0), "a post_handler", "(p, regs, flags)"),
    "fault": (lambda: kprobes.attach("leaf", fault=lambda p, regs: 0), "a fault_handler", "(p, regs, trapnr)"),
    "return": (lambda: kprobes.attach_return("leaf", lambda regs: 0), "a handler", "(ri, regs)"),
    "return's entry": (lambda: kprobes.attach_return("leaf", entry=lambda *, ri, regs: 0), "an entry_handler", "(ri, "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_number_of_parameters_is_refused_when_attached(program, name):
    attach, role, wanted = WRONG[name]
    probe = attach()
    with pytest.raises(TypeError, match=re.escape(role) + r", which is called with \d arguments, " + re.escape(wanted)):
        probe.attach()
    program["leaf"](1)
    assert not kprobes.kprobes_list()


def few_of_an_fprobe(fp, entry_ip):
    return 0


def few_of_a_kprobe(p):
    return 0


@pytest.mark.parametrize(
    ("native", "handler", "wanted"),
    [
        (fprobe.native, few_of_an_fprobe, "5 parameters, not 2"),
        (kprobes.native, few_of_a_kprobe, "2 parameters, not 1"),
    ],
)
def test_a_native_handler_with_too_few_parameters_is_refused_when_defined(native, handler, wanted):
    with pytest.raises(SyntaxError, match=rf"has no type: a handler of this kind has {wanted}"):
        native(handler)


def test_a_lambda_cannot_be_a_native_handler():
    with pytest.raises(TypeError, match="a lambda cannot be compiled; define the function with `def`"):
        fprobe.native(lambda fp, entry_ip, ret_ip, regs, entry_data: 0)


def test_registering_refuses_it_too_and_the_probe_can_be_mended(program):
    fp = fprobe.fprobe(lambda: 0)
    with pytest.raises(TypeError, match="an entry_handler, which is called with 5 arguments"):
        fprobe.register_fprobe(fp, "leaf")
    fp.entry_handler = lambda *hit: 0
    fprobe.register_fprobe(fp, "leaf")
    program["leaf"](1)
    fprobe.unregister_fprobe(fp)
    assert fp.hits == 1


class Handler:
    def method(self, fp, entry_ip, ret_ip, regs, entry_data):
        return 0

    def __call__(self, fp, entry_ip, ret_ip, regs, entry_data, more=0):
        return 0


@pytest.mark.parametrize("handler", [Handler(), Handler().method, lambda *hit: 0, max, lambda a, b, c, *rest: 0])
def test_whatever_can_be_called_so_is_accepted(program, handler):
    with fprobe.attach("leaf", entry=handler) as probe:
        program["leaf"](1)
    assert probe.hits == 1
