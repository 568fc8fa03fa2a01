"""Many kprobes in one batch: that each takes few steps, that all are there, and what a batch leaves alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from isolation import isolated
from program_generator import generate_flat
from steps import steps

import kprobes
import sandbox
from sandbox.loading.module import Module

FUNCTIONS = 600
MOST_STEPS = 620
"""Calls of functions, built-in ones too, for a probe in a new place: 574 to 587, by version and addresses."""
MOST_STEPS_AGAIN = 230
"""... where there was one before: 197 to 203."""
STUB = 5
"""Bytes in front of the instruction that is probed."""


@kprobes.native
def pre(p, regs):
    return 0


def flat() -> Module:
    return sandbox.load(generate_flat(FUNCTIONS).ir, name="flat")


def on(sites: Sequence[int], handler: Any = pre) -> list[kprobes.kprobe]:
    return [kprobes.kprobe(addr=site + STUB, pre_handler=handler) for site in sites]


@pytest.mark.stress
@isolated
def test_a_batch_takes_few_steps_for_each_probe():
    """KP-17: no check is left out, and none is made twice."""
    sites = flat().sites
    kprobes.register_kprobes(on(sites[:50]))
    some = on(sites[100:500])
    new = steps(lambda: kprobes.register_kprobes(some)) / len(some)
    kprobes.unregister_kprobes(some)
    kprobes.wait_for_kprobe_optimizer()
    again = steps(lambda: kprobes.register_kprobes(on(sites[100:500]))) / len(some)
    assert new < MOST_STEPS, new
    assert again < MOST_STEPS_AGAIN, again


@isolated
def test_all_of_a_batch_are_hit_and_become_jumps():
    """KP-36, KP-57, KP-65"""
    module = flat()
    hits = []

    def noted(p, regs):
        hits.append(p.addr)
        return 0

    for optimized in (False, True):
        kprobes.set_kprobes_optimization(int(optimized))
        batch = on(module.sites, noted)
        kprobes.register_kprobes(batch)
        kprobes.wait_for_kprobe_optimizer()
        assert {bool(p.place.covered) for p in batch} == {optimized}
        module["sweep"](7)
        assert sorted(hits) == sorted(p.addr for p in batch)
        kprobes.unregister_kprobes(batch)
        kprobes.wait_for_kprobe_optimizer()
        hits.clear()
        module["sweep"](7)
        assert not hits


@isolated
def test_a_batch_leaves_the_garbage_collector_as_it_is():
    """Within it nothing is collected; one that fails ends as well (KP-58)."""
    sites = flat().sites
    for collecting in (True, False):
        (gc.enable if collecting else gc.disable)()
        batch = on(sites[:5])
        kprobes.register_kprobes(batch)
        assert gc.isenabled() is collecting
        with pytest.raises(OSError, match="already registered"):
            kprobes.register_kprobes([*on(sites[10:15]), batch[0]])
        assert gc.isenabled() is collecting
        kprobes.unregister_kprobes(batch)
        assert gc.isenabled() is collecting
