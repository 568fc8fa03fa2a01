"""attach() has room for every return; who sets a limit and misses calls by it is told once, with its name."""

# ruff: noqa: ARG005 (handlers take what handlers are given)

from __future__ import annotations

import subprocess
import sys

import pytest
from programs import basic

import fprobe
import kprobes


@pytest.fixture(scope="module")
def program():
    module = basic()
    yield module
    module.unload()


def test_deep_recursion_misses_no_return(program, caplog):
    back = []
    with fprobe.attach("factorial", exit=lambda *hit: back.append(1)) as probe:
        program["factorial"](500)
    assert len(back) == probe.hits == 500 and probe.counts.missed == 0
    assert not caplog.records


def test_a_limit_of_returns_is_told_once(program, caplog):
    with fprobe.attach("factorial", exit=lambda *hit: None, nr_maxactive=8) as probe:
        program["factorial"](100)
    wanted = "the fprobe on 'factorial' missed 92 returns: more than nr_maxactive=8 calls were waiting to return"
    assert [wanted in record.message for record in caplog.records] == [True]
    with probe:
        program["factorial"](100)
    assert len(caplog.records) == 1


def test_a_limit_of_a_kretprobe_is_told_once(program, caplog):
    with kprobes.attach_return("factorial", lambda ri, regs: None, maxactive=8):
        program["factorial"](100)
    assert [record.message for record in caplog.records] == [
        "the kretprobe on 'factorial' missed 92 calls: more than maxactive=8 calls were waiting to return; "
        "give attach_return() a larger maxactive"
    ]


def test_who_never_detaches_is_told_when_the_process_ends():
    text = """
import fprobe, sandbox
IR = "define i64 @rec(i64 %n) { %s = icmp eq i64 %n, 0  br i1 %s, label %a, label %b\\na: ret i64 0\\nb: %m = sub i64 %n, 1" \
     "  %r = call i64 @rec(i64 %m)  %t = add i64 %r, 1  ret i64 %t }"
module = sandbox.load(IR, name="prog")
probe = fprobe.attach("rec", exit=lambda *hit: None, nr_maxactive=3).attach()
module["rec"](10)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("nr_maxactive=3") == 1
