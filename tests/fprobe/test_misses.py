"""nmissed, by cause: section G, FP-29, FP-31, FP-35, FP-38, FP-50, FP-51."""

# ruff: noqa: ARG005  (the signature of a handler is given)

from __future__ import annotations

import shutil
import threading

import pytest
from isolation import isolated
from programs import basic, load_c

import fprobe

RESUMED = r"""
#include <ucontext.h>
static ucontext_t caller, coroutine;
static char stack[1 << 16] __attribute__((aligned(4096)));
__attribute__((noipa)) void yields(void) { swapcontext(&coroutine, &caller); }
static void body(void) { yields(); }
void begin(void) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack; coroutine.uc_stack.ss_size = sizeof stack; coroutine.uc_link = &caller;
    makecontext(&coroutine, body, 0);
    swapcontext(&caller, &coroutine);
}
void resume(void) { swapcontext(&caller, &coroutine); }
"""


def test_fp51_one_level_of_self_recursion_is_no_miss(program):
    """A handler that calls its own function: it runs twice; the third level is a miss."""
    seen = []

    def entry(fp, ip, ret, regs, data):
        seen.append(regs.di)
        program["leaf"](regs.di + 1)

    with fprobe.attach("leaf", entry=entry) as probe:
        assert program["leaf"](1) == 2
    assert seen == [1, 2]
    assert probe.counts.missed_recursion == probe.fp.nmissed == 1


def test_fp51_ft55_in_list_mode_the_third_level_is_dropped_unseen(program):
    seen = []

    def entry(fp, ip, ret, regs, data):
        seen.append(regs.di)
        program["leaf"](regs.di + 1)

    with fprobe.attach("leaf", entry=entry) as probe, fprobe.attach("leaf", entry=lambda *hit: 0) as other:
        assert program["leaf"](1) == 2
    assert seen == [1, 2]
    assert probe.fp.nmissed == other.fp.nmissed == 0


def test_fp51_below_an_exit_handler_every_probe_of_the_function_counts(program):
    """An exit handler holds only the FTRACE bit, so the list is walked and each probe's own lock fails."""
    seen = []

    def exit_(fp, ip, ret, regs, data):
        seen.append(regs.ax)
        program["leaf"](regs.ax)

    with fprobe.attach("leaf", exit=exit_) as probe, fprobe.attach("leaf", entry=lambda *hit: 0) as other:
        assert program["leaf"](1) == 2
    assert seen == [2, 3]
    assert probe.fp.nmissed == 1 and other.fp.nmissed == 1
    assert other.hits == 2


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@isolated
def test_g_a_trylock_failure_at_exit_counts():
    """A hooked call begins outside of handlers, and returns, on its own stack, within two of them."""
    program, coroutine = basic(), load_c(RESUMED)
    returned = []
    with (
        fprobe.attach("yields", exit=lambda *hit: returned.append(1)) as probe,
        fprobe.attach("other", entry=lambda *hit: program["leaf"](1) and 0),
        fprobe.attach("leaf", entry=lambda *hit: coroutine["resume"]()),
    ):
        coroutine["begin"]()
        coroutine["resume"]()
        coroutine["begin"]()
        program["other"](1)
        counts = probe.counts
    assert returned == [1]
    assert (counts.hits, counts.missed, counts.missed_recursion) == (2, 1, 1)


def test_fp54_different_threads_never_block_each_other(program):
    together = threading.Barrier(2, timeout=30)
    with fprobe.attach("leaf", entry=lambda *hit: together.wait() and 0) as probe:
        threads = [threading.Thread(target=program["leaf"], args=(1,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert probe.hits == 2 and probe.fp.nmissed == 0 and probe.fp.errors.first is None


@pytest.mark.parametrize("how", ["disabled", "cancelled", "excluded", "unregistered"])
def test_g_what_is_no_miss(program, how):
    probe = fprobe.attach(
        "l*",
        entry=lambda *hit: how == "cancelled",
        exit=lambda *hit: None,
        exclude="leaf" if how == "excluded" else None,
    )
    probe.attach()
    if how == "disabled":
        probe.disable()
    if how == "unregistered":
        probe.detach()
    program["leaf"](1)
    assert probe.fp.nmissed == 0
    probe.detach()
    assert probe.fp.nmissed == 0


def test_fp31_fp35_a_shared_probe_does_not_run_within_another_shared_ones_handler(program):
    seen = []

    def outer(*hit):
        seen.append("outer")
        program["other"](1)

    with (
        fprobe.attach("leaf", entry=outer, shared=True) as first,
        fprobe.attach("other", entry=lambda *hit: seen.append("shared"), shared=True) as second,
        fprobe.attach("twice", entry=lambda *hit: seen.append("plain")),
    ):
        program["twice"](1)
    assert seen == ["plain", "outer", "outer"]
    assert second.counts.missed_busy == second.fp.nmissed == 2 and first.fp.nmissed == 0


def test_fp36_a_plain_probe_does_run_there(program):
    seen = []

    def outer(*hit):
        program["other"](1)

    with (
        fprobe.attach("leaf", entry=outer, shared=True),
        fprobe.attach("other", entry=lambda *hit: seen.append(1)),
    ):
        program["leaf"](1)
    assert seen == [1]


def test_fp38_the_exit_path_is_not_busy(program):
    """No test of kprobe_running() at exit, and no kprobe_busy around an exit handler."""
    seen = []

    def exit_(*hit):
        seen.append("exit")
        program["other"](1)

    with (
        fprobe.attach("leaf", exit=exit_, shared=True),
        fprobe.attach("other", entry=lambda *hit: seen.append("entry"), shared=True) as second,
    ):
        program["leaf"](1)
    assert seen == ["exit", "entry"] and second.fp.nmissed == 0


def test_fp50_counts_are_exact_over_threads(program):
    with fprobe.attach("factorial", action=fprobe.Stat(), nr_maxactive=1) as probe:
        threads = [threading.Thread(target=lambda: [program["factorial"](10) for _ in range(300)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counts = probe.counts
    stats = probe.action.functions().values()
    assert counts.hits == 12_000 == sum(stat.hits for stat in stats)
    assert counts.missed_nodes == counts.missed == sum(stat.missed for stat in stats) >= 12_000 - 1_200


def test_depth_large_entry_data_fills_the_shadow_stacks_data_area(program):
    with fprobe.attach("factorial", exit=lambda *hit: None, entry_data_size=4096, nr_maxactive=1000) as probe:
        assert program["factorial"](200) % (1 << 61) == program["factorial"](200) % (1 << 61)
    assert probe.counts.missed == probe.counts.missed_depth > 0
