"""Hazard: gcc keeps values in r8 to r11 over calls of functions that it knows (-fipa-ra), and stubs use those registers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from isolation import isolated
from sampled import sampled

import fprobe
import kprobes
import sandbox
from sandbox.compile.codegen import ProgramError
from sandbox.native import u64

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")

SOURCE = """
{pragma}
#define HIDDEN __attribute__((noinline{attribute})) static
HIDDEN long leaf(long a) {{ return a * 3 + 1; }}
HIDDEN long leaf2(long a, long b) {{ return a * b; }}
__attribute__((noinline{attribute})) long caller(long a, long b, long c, long d, long e, long f)
{{
    long s = 0;
    for (long i = 0; i < a; i++) {{ s += leaf(i) + b * c; s ^= leaf2(s, d) + e; }}
    return s + f;
}}
"""
WAYS = {
    "O2": ("", "", ["-O2"]),
    "O3": ("", "", ["-O3"]),
    "asked for": ("", "", ["-O2", "-fipa-ra"]),
    "attribute": ("", ', optimize("O2")', []),
    "attribute at O3": ("", ', optimize("O3")', ["-O2"]),
    "pragma": ('#pragma GCC optimize ("O2")', "", []),
    "without stubs": ("", "", ["-O2", "-fpatchable-function-entry=0"]),
    "some without stubs": ("", ", patchable_function_entry(0)", ["-O2"]),
    "without stubs, attribute": ("", ', patchable_function_entry(0), optimize("O2")', []),
}


def write(pragma="", attribute=""):
    path = Path(tempfile.mkdtemp(prefix="ipa-ra-"), "ipa.c")
    path.write_text(SOURCE.format(pragma=pragma, attribute=attribute))
    return path


def expected(a, b, c, d, e, f):
    s, word = 0, (1 << 64) - 1
    for i in range(a):
        s = s + i * 3 + 1 + b * c & word
        s ^= s * d + e & word
    s = s + f & word
    return s - (s >> 63 << 64)


counted = fprobe.Array(u64, 1, shared=True)
GIVEN = (9, 1234567, 7654321, 3, 99, 5)
CALLS = 2 * GIVEN[0]


@fprobe.native
def left(fp, ip, ret_ip, regs, data):
    counted[0] += 1


@kprobes.native
def returned(ri, regs):
    counted[0] += 1


@pytest.mark.parametrize("way", sampled(WAYS, 3))
@isolated(timeout=60)
def test_callers_lose_no_value_that_they_keep_over_a_probed_call(way):
    pragma, attribute, flags = WAYS[way]
    module = sandbox.load(write(pragma, attribute), name="ipa", cflags=flags)
    assert module["caller"](*GIVEN) == expected(*GIVEN)
    traced = [symbol.name for symbol in module.site_functions if symbol.name.startswith("leaf")]
    assert bool(traced) == ("without stubs" not in way)
    in_python = []
    for handler in (left, lambda *hit: in_python.append(hit)) if traced else ():
        before = counted[0]
        with fprobe.attach(traced, exit=handler):
            assert module["caller"](*GIVEN) == expected(*GIVEN)
        assert counted[0] - before + len(in_python) == CALLS
    for optimized in (0, 1):
        kprobes.set_kprobes_optimization(optimized)
        before = counted[0]
        probes = [kprobes.kretprobe(symbol_name=f"ipa:{name}", handler=returned) for name in ("leaf", "leaf2")]
        kprobes.register_kretprobes(probes)
        kprobes.wait_for_kprobe_optimizer()
        assert module["caller"](*GIVEN) == expected(*GIVEN)
        assert counted[0] - before == CALLS
        kprobes.unregister_kretprobes(probes)


@pytest.mark.parametrize("asked", ['"ipa-ra"', '"O2","ipa-ra"', '"-fipa-ra"'])
def test_what_no_option_takes_back_is_refused(asked):
    with pytest.raises(ProgramError, match=r'ipa\.c:3: optimize\("ipa-ra"\) lets callers keep values'):
        sandbox.load(write(attribute=f", optimize({asked})"), name="ipa")


def test_switching_it_off_is_not_refused():
    sandbox.load(write(attribute=', optimize("no-ipa-ra")'), name="ipa").unload()
