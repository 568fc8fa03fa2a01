"""As many probes as one function, and one process, may have."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import errno
import shutil

import pytest
from isolation import isolated
from programs import basic, load_c
from sampled import in_stress

import fprobe
import kprobes
from ftrace.core.runtime import runtime
from ftrace.core.tracer import tracer
from sandbox.threads.tasks import COUNTER_LINES

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


def at_both_ends(number, seen, **fields):
    """An fprobe whose exit shows what its entry has left in its data. Every tenth cancels its exit."""

    def entry(fp, ip, ret_ip, regs, data):
        data[:2] = number.to_bytes(2, "little")
        return number % 10 == 3

    def leave(fp, ip, ret_ip, regs, data):
        seen.append((number, int.from_bytes(data[:2], "little")))

    return fprobe.attach(["leaf"], entry=entry, exit=leave, entry_data_size=2, nr_maxactive=1, **fields).attach()


@pytest.mark.parametrize("count", [63, 65, *map(in_stress, (64, 128, 200, 1024))])
@isolated(shared=True)
def test_exits_and_data_of_many_probes_on_one_function(count):
    """Beyond 64 a word of the node has no longer a bit for each."""
    module, seen = basic(), []
    plain = module["leaf"](1)
    probes = [at_both_ends(number, seen) for number in range(count)]
    for _ in range(3):  # with one node each: all are given back
        seen.clear()
        assert module["leaf"](1) == plain
        assert seen == [(number, number) for number in range(count) if number % 10 != 3]
    for probe in probes[::7]:
        probe.detach()
    seen.clear()
    module["leaf"](1)
    assert seen == [(number, number) for number in range(count) if number % 10 != 3 and number % 7]
    assert all(probe.counts.missed == 0 for probe in probes)


@isolated(shared=True)
def test_native_and_callback_probes_among_many():
    """Kretprobes are callbacks of such a list."""
    module, seen = basic(), []
    stats = [fprobe.Stat() for _ in range(70)]
    probes = [fprobe.attach(["leaf"], action=stat).attach() for stat in stats]
    returns = []
    rp = kprobes.kretprobe(symbol_name="leaf", handler=lambda ri, regs: returns.append(ri.ret_addr), maxactive=1)
    kprobes.register_kretprobe(rp)
    probes.append(at_both_ends(5, seen))
    for _ in range(4):
        module["leaf"](1)
    assert len(returns) == 4 and rp.nmissed == 0 and seen == [(5, 5)] * 4
    assert all(probe.counts.hits == 4 and probe.counts.missed == 0 for probe in probes)
    kprobes.unregister_kretprobe(rp)


@needs_cc
@isolated(shared=True)
def test_calls_that_are_jumped_out_of_give_the_nodes_of_many_probes_back():
    module = load_c(
        r"""
        #include <setjmp.h>
        static jmp_buf back;
        __attribute__((noipa)) long leaf(long n) { if (n) longjmp(back, 1); return n; }
        long jumps(long n) { volatile long i = 0; for (; i < n; i++) if (!setjmp(back)) leaf(1); return leaf(0); }
        """
    )
    seen = []
    probes = [at_both_ends(number, seen) for number in range(0, 1000, 10)]
    module["jumps"](20)
    assert len(seen) == 100
    assert all(probe.counts.missed == 0 for probe in probes)


@pytest.mark.stress
@isolated(shared=True)
def test_65536_probes_for_a_process_and_each_counts_alone():
    from ftrace.core.probe import NativeProbe

    module, lines = basic(), tracer().table.lines
    assert COUNTER_LINES >= 65536
    with fprobe.attach(["leaf"], action=fprobe.Count()) as first:
        module["leaf"](1)
        others = [lines.take() for _ in range(COUNTER_LINES - lines.in_use - 1)]
        with fprobe.attach(["leaf"], action=fprobe.Stat(), nr_maxactive=3) as last:
            assert lines.in_use == COUNTER_LINES
            with pytest.raises(OSError, match=str(COUNTER_LINES)) as caught:
                fprobe.attach(["other"], entry=lambda *hit: 0).attach()
            assert caught.value.errno == errno.ENOSPC
            for _ in range(5):
                module["leaf"](1)
            assert (first.hits, last.hits, last.counts.missed) == (6, 5, 0)
        for offset in others:
            lines.give(offset)
    assert lines.in_use == 0
    assert NativeProbe(lines).counts().hits == 0 and runtime().tasks()
