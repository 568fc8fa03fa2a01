"""What probes, registers, counts and histograms show of themselves in a shell and in a notebook."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import re
import threading

import pytest
from programs import basic

import fprobe
import kprobes
from ftrace.core.probe import Counts


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


def test_attachments_of_fprobes(program):
    attachment = fprobe.attach("lea[f]", entry=on_entry)
    assert repr(attachment) == "<Attachment: on 'lea[f]', state not attached, entry on_entry, hits 0, missed 0>"
    with attachment:
        program["leaf"](1)
        shown = "<Attachment: on 'lea[f]', state registered, entry on_entry, functions 1, hits 1, missed 0>"
        assert repr(attachment) == shown
        attachment.disable()
        assert "state disabled" in repr(attachment)
        assert "<tr><th>on</th><td>&#x27;lea[f]&#x27;</td></tr>" in attachment._repr_html_()
    assert "state not attached" in repr(attachment) and "hits 1," in repr(attachment)
    counting = fprobe.attach([program.symbol("leaf").address], action=fprobe.Count())
    assert f"on [{program.symbol('leaf').address:#x}], state not attached, action Count, hits 0" in repr(counting)
    assert "on ['a', 'a', 'a', 6 more]" in repr(fprobe.attach(["a"] * 9, entry=on_entry))


def test_attachments_of_kprobes(program):
    attachment = kprobes.attach(["leaf+5", "othe[r]"], action=kprobes.Count())
    assert repr(attachment) == "<Attachment: on ['leaf+5', 'othe[r]'], state not attached, hits 0, missed 0>"
    with attachment:
        program["leaf"](1)
        assert "state attached, probes 2, hits 1, missed 0>" in repr(attachment)
    assert repr(attachment.action) == "<Count: hits 1>"
    with kprobes.attach("leaf", pre=lambda p, regs: 1 // 0) as probe:
        assert repr(probe.errors) == "<HandlerErrors: none>" and probe.action is None
        program["leaf"](1)
    assert "hits 1, errors 1, missed 0>" in repr(probe)
    assert repr(probe.errors).startswith("<HandlerErrors: 1, the first ZeroDivisionError(")


def test_an_instance_of_a_kretprobe(program):
    kept = []
    with kprobes.attach_return("leaf", lambda ri, regs: kept.extend([repr(ri), ri])) as probe:
        program["leaf"](1)
    text, instance = kept
    assert re.fullmatch(rf"<kretprobe_instance of leaf, task {threading.get_native_id()}, ret_addr 0x[0-9a-f]+>", text)
    assert repr(instance) == "<kretprobe_instance of leaf, whose handler has returned>"
    assert repr(probe) == "<ReturnAttachment: on 'leaf', state not attached, hits 1, missed 0>"


def test_actions(program):
    with fprobe.attach("leaf", action=fprobe.Stat()) as probe:
        program["leaf"](1)
    assert repr(probe.action) == "<Stat: functions 1, hits 1>"
    assert re.search(r"<tr><th>leaf\+0x0/0x\w+ \[\w+\]</th><td>1</td><td>0</td>", probe.action._repr_html_())
    with fprobe.attach("leaf", action=fprobe.Record()) as recording:
        program["leaf"](1)
    assert repr(recording.action) == "<Record: written 1, lost 0, capacity 32,768>"
    assert repr(fprobe.Count()) == "<Count>"


def test_dropped_values_are_shown(program):
    few = fprobe.Histogram(2)

    @fprobe.native
    def measure_few(fp, entry_ip, ret_ip, regs, entry_data):
        few.add(regs.di)

    with fprobe.attach("leaf", entry=measure_few):
        program["leaf"](9)
    assert repr(few).endswith("  1 dropped: the map has no element for them")
    assert "<tr><th>dropped</th><td>1</td></tr>" in few._repr_html_()
