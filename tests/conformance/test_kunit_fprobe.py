"""The cases of the kernel's lib/test_fprobe.c, each under its id: UF-1..7 (docs/conformance.md)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from programs import site_of

import fprobe
import sandbox
from sandbox.threads.contexts import preemptible

DIV_FACTOR = 3
TARGETS = """
define i32 @fprobe_selftest_target(i32 %v) noinline { %r = udiv i32 %v, 3  ret i32 %r }
define i32 @fprobe_selftest_target2(i32 %v) noinline { %q = udiv i32 %v, 3  %r = add i32 %q, 1  ret i32 %r }
define i32 @fprobe_selftest_nest_target(i32 %v, ptr %fn) noinline {
  %more = add i32 %v, 2
  %r = notail call i32 %fn(i32 %more)
  ret i32 %r
}
"""
TARGET, TARGET2, NEST_TARGET = "fprobe_selftest_target", "fprobe_selftest_target2", "fprobe_selftest_nest_target"


class Suite:
    """A loaded program, the number it is called with, and what the shared handlers note and expect."""

    def __init__(self, program: Any, rand1: int) -> None:
        self.program, self.rand1 = program, rand1
        self.entry_val = self.exit_val = 0
        self.entry_return_value = 0
        self.quotient = rand1 // DIV_FACTOR
        self.sites = {site_of(program, TARGET): self.quotient, site_of(program, TARGET2): self.quotient + 1}

    def probe(self, **fields: Any) -> fprobe.fprobe:
        return fprobe.fprobe(self.entry, **fields)

    def entry(self, fp, ip, ret_ip, regs, data):
        assert not preemptible()
        assert ip in self.sites
        self.entry_val = self.quotient
        self.check_data(fp, data)
        if data is not None:
            data[:4] = self.entry_val.to_bytes(4, "little")
        return self.entry_return_value

    def exit(self, fp, ip, ret_ip, regs, data):
        assert not preemptible()
        assert regs.ax & 0xFFFF_FFFF == self.sites[ip]
        assert self.entry_val == self.quotient
        self.exit_val = self.entry_val + DIV_FACTOR
        self.check_data(fp, data)
        assert data is None or int.from_bytes(data, "little") == self.entry_val

    def check_data(self, fp, data):
        assert (data is not None) == bool(fp.entry_data_size)

    def call(self, name: str = TARGET, *arguments: int) -> None:
        """Zero both values and call a target; its result has to be right."""
        self.entry_val = self.exit_val = 0
        result = self.program[name](self.rand1, *arguments) & 0xFFFF_FFFF
        assert name == NEST_TARGET or result == self.sites[site_of(self.program, name)]

    def check_both(self) -> None:
        """Both handlers run for both targets."""
        for name in (TARGET, TARGET2):
            self.call(name)
            assert self.entry_val and self.exit_val == self.entry_val + DIV_FACTOR


@pytest.fixture(scope="module", params=["fentry", "patchable", "mcount"])
def program(request):
    module = sandbox.load(TARGETS, name=f"kunit_{request.param}", flavour=request.param)
    yield module
    module.unload()


@pytest.fixture(params=[4, 5, 0x1234_5678, 2**32 - 1])
def suite(program, request):
    return Suite(program, request.param)


def unregister(fp):
    """Unregister; what its handlers found wrong is raised here."""
    fprobe.unregister_fprobe(fp)
    if fp.errors.first:
        raise fp.errors.first


def test_uf1_fprobe_entry(suite):
    fp = suite.probe()
    with pytest.raises(OSError) as caught:
        fprobe.unregister_fprobe(fp)
    assert caught.value.errno == errno.EINVAL
    fprobe.register_fprobe(fp, "fprobe_selftest_target*", None)
    for name in (TARGET, TARGET2):
        suite.call(name)
        assert suite.entry_val and not suite.exit_val
    unregister(fp)


def test_uf2_fprobe(suite):
    fp = suite.probe(exit_handler=suite.exit)
    fprobe.register_fprobe(fp, "fprobe_selftest_target*", None)
    suite.check_both()
    unregister(fp)


def test_uf3_fprobe_syms(suite):
    fp = suite.probe(exit_handler=suite.exit)
    fprobe.register_fprobe_syms(fp, [TARGET, TARGET2], 2)
    suite.check_both()
    unregister(fp)


def test_uf4_fprobe_data(suite):
    fp = suite.probe(exit_handler=suite.exit, entry_data_size=4)
    fprobe.register_fprobe(fp, TARGET, None)
    suite.call(TARGET2)
    assert not suite.entry_val  # an exact name
    suite.call()
    assert suite.exit_val
    unregister(fp)


def test_uf5_fprobe_nest(suite):
    """The inner call finds no return node: counted, and its exit handler does not run."""
    nest = site_of(suite.program, NEST_TARGET)
    exits = []

    def entry(fp, ip, ret_ip, regs, data):
        assert not preemptible()
        return 0

    def exit_(fp, ip, ret_ip, regs, data):
        assert not preemptible() and ip == nest
        exits.append(ip)

    fp = fprobe.fprobe(entry, exit_, nr_maxactive=1)
    fprobe.register_fprobe_syms(fp, [TARGET, NEST_TARGET], 2)
    suite.call(NEST_TARGET, suite.program.symbol(TARGET).address)
    assert fp.nmissed == 1 and exits == [nest]
    unregister(fp)


def test_uf6_fprobe_skip(suite):
    fp = suite.probe(exit_handler=suite.exit)
    fprobe.register_fprobe(fp, TARGET, None)
    suite.entry_return_value = 1
    suite.call()
    assert suite.entry_val and not suite.exit_val and fp.nmissed == 0
    suite.entry_return_value = 0
    unregister(fp)


def test_uf7_fprobe_multi(suite):
    """Two on one function; then the same objects in the other order."""
    target, seen = site_of(suite.program, TARGET), []

    def note(who):
        def entry(fp, ip, ret_ip, regs, data):
            seen.append((who, ip == target, suite.quotient))
            return 0

        return entry

    def exit_(fp, ip, ret_ip, regs, data):
        seen.append(("exit", ip == target, regs.ax & 0xFFFF_FFFF))

    first, second = fprobe.fprobe(note("first"), exit_), fprobe.fprobe(note("second"))
    for order in ([first, second], [second, first]):
        seen.clear()
        for fp in order:
            fprobe.register_fprobe(fp, TARGET, None)
        suite.call()
        for fp in (first, second):
            unregister(fp)
        assert sorted(seen) == [(who, True, suite.quotient) for who in ("exit", "first", "second")]
