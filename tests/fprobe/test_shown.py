"""What probes, registers, counts and histograms show of themselves in a shell and in a notebook."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import re

import pytest
from programs import basic

import fprobe
import kprobes
from ftrace.probe import Counts


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


sizes = fprobe.Histogram()


@fprobe.native
def measure(fp, entry_ip, ret_ip, regs, entry_data):
    sizes.add(regs.di)


def on_entry(fp, entry_ip, ret_ip, regs, entry_data):
    return 0


def on_pre(p, regs):
    return 0


def test_fprobe(program):
    with fprobe.attach(["leaf", "other"], entry=on_entry) as probe:
        program["leaf"](1)
        shown = "<fprobe: state registered, entry on_entry, functions 2, hits 1, missed 0>"
        assert repr(probe.fp) == shown
        fprobe.disable_fprobe(probe.fp)
        assert "state disabled" in repr(probe.fp)
    assert repr(probe.fp) == "<fprobe: state not registered, entry on_entry, hits 1, missed 0>"
    assert "<tr><th>entry</th><td>on_entry</td></tr>" in probe.fp._repr_html_()


def test_kprobe_and_kretprobe(program):
    p = kprobes.kprobe(symbol_name="leaf", pre_handler=on_pre)
    assert repr(p) == "<kprobe: at leaf, state not registered, pre on_pre, nmissed 0>"
    with kprobes.attach("leaf", pre=on_pre) as probe:
        assert repr(probe.p) == "<kprobe: at leaf, state stub, pre on_pre, nmissed 0>"
        kprobes.disable_kprobe(probe.p)
        assert "state disabled" in repr(probe.p)
    with kprobes.attach("leaf+5", pre=on_pre, post=lambda p, regs, flags: None) as probe:
        assert "at leaf+0x5, state breakpoint" in repr(probe.p)
        assert "<th>state</th><td>breakpoint</td>" in probe.p._repr_html_()
    rp = kprobes.kretprobe(symbol_name="leaf", handler=on_pre)
    assert repr(rp) == "<kretprobe: at leaf, state not registered, handler on_pre, nmissed 0>"
    assert "<caption>kretprobe</caption>" in rp._repr_html_()


def test_names_of_handlers_are_escaped_in_html():
    html = fprobe.fprobe(lambda *hit: 0)._repr_html_()
    assert "&lt;lambda&gt;" in html and "<lambda>" not in html


def test_registers(program):
    texts = []

    def entry(fp, entry_ip, ret_ip, regs, entry_data):
        texts.append((repr(regs), regs._repr_html_()))
        texts.append(regs)

    with fprobe.attach("leaf", entry=entry) as probe:
        program["leaf"](0x77)
    assert not probe.fp.errors.count
    (text, html), kept = texts
    assert re.fullmatch(r"pt_regs\(r15=0x[0-9a-f]+, .*\bdi=0x77, .*ss=0x[0-9a-f]+\)", text)
    assert "<tr><th>di</th><td>0x77</td></tr>" in html
    assert repr(kept) == "<pt_regs, whose handler has returned>"
    assert "has returned" in kept._repr_html_()


def test_counts():
    assert repr(Counts(hits=3)) == "Counts(hits=3)"
    assert repr(Counts(hits=3000, missed_nodes=2)) == "Counts(hits=3000, missed_nodes=2)"
    assert "<tr><th>hits</th><td>3,000</td></tr>" in Counts(hits=3000)._repr_html_()
    assert eval(repr(Counts(1, 2, 3, 4))) == Counts(1, 2, 3, 4)


def test_histogram(program):
    with fprobe.attach("leaf", entry=measure):
        for value in (0, 5, 6, 700):
            program["leaf"](value)
    first, *bars = repr(sizes).splitlines()
    assert re.fullmatch(r"<Histogram .*: 4 values>", first)
    assert len(bars) == 11 and "4 .. 8" in repr(sizes)
    assert "<tr><th>4 .. 8</th><td>2</td></tr>" in sizes._repr_html_()
