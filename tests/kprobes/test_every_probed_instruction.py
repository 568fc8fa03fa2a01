"""A kprobe on every instruction leaves every result as it was and counts right: stepped, boosted, and as a jump.

*All at once*: on all instructions of the code, whether the work comes by or not. *One at a time*: on each that it comes by, with
no other probe near; so that this ends within minutes, those that are far from each other are registered together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest
import workloads
from every import MODES, Probed
from isolation import isolated
from stepping import CannotTrace, traced
from workloads import Work

from kprobes.aggregate import original_text
from kprobes.boundaries import boundaries

ACCEPTED = ("leaves no room in its slot", "is a trap of its own")
"""Why an instruction of compiled code may be refused."""
APART = 16
"""Probes of one group are at least so many instructions from each other: no jump reaches so far."""
FEW = MODES[:3]


def reference(work: Work) -> Counter[int]:
    try:
        return traced(work.spans, work.run)
    except CannotTrace as why:
        pytest.skip(str(why))


def check(work: Work, expected: object, steps: Counter[int], probed: Probed) -> None:
    """Results as without probes, counts as a tracer's, nothing missed or refused without a reason."""
    unknown = [str(error) for error in probed.refused.values() if not any(why in str(error) for why in ACCEPTED)]
    assert not unknown, unknown[:5]
    result, counts = probed.counts(work.run)
    assert result == expected, probed.mode
    addresses = {p.addr for p in probed.probes}
    wrong = {hex(ip): (counts[ip], steps[ip]) for ip in addresses if counts[ip] != steps[ip]}
    assert not wrong, (probed.mode, len(wrong), list(wrong.items())[:10])
    assert set(counts) <= addresses
    assert probed.missed() == 0


def all_at_once(work: Work, modes: Sequence[str] = MODES, least: float = 0.85) -> None:
    """`least`: the share of probes that become jumps, where they may."""
    expected, steps = work.run(), reference(work)
    everywhere = [at for start, end in work.spans for at in boundaries(original_text, start, end)]
    for mode in modes:
        began = time.monotonic()
        probed = Probed(everywhere, mode, dense=True)
        check(work, expected, steps, probed)
        share = probed.jumps / probed.not_on_ftrace
        assert share > least if mode.startswith("optimized") else share == 0, (mode, share)
        probed.close()
        print(f"{mode}: {len(probed.probes)} probes, {share:.1%} jumps, {steps.total()} hits, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        assert work.run() == expected


def one_at_a_time(work: Work, modes: Sequence[str] = FEW) -> None:
    expected, steps = work.run(), reference(work)
    covered = sorted(at for at in steps if steps[at])
    for mode in modes:
        began, jumps, probes, refused = time.monotonic(), 0, 0, 0
        for first in range(APART):
            probed = Probed(covered[first::APART], mode, dense=False)
            check(work, expected, steps, probed)
            refused += len(probed.refused)
            jumps += probed.jumps
            probes += probed.not_on_ftrace
            probed.close()
        assert jumps > 0.9 * probes if mode.startswith("optimized") else jumps == 0, (mode, jumps, probes)
        print(
            f"{mode}: {probes} probes, {refused} refused, {jumps} jumps, {time.monotonic() - began:.0f} s", flush=True
        )
    assert work.run() == expected


@isolated(timeout=110)
def test_the_demo_program():
    """KP-26..34, KP-60..72"""
    all_at_once(workloads.demo())


@isolated(timeout=110)
@pytest.mark.stress
def test_the_demo_program_one_at_a_time():
    """KP-26..34, KP-60..72"""
    one_at_a_time(workloads.demo(), MODES)


@isolated(timeout=900)
@pytest.mark.timeout(1000)
@pytest.mark.stress
def test_generated_programs():
    """KP-26..34, KP-60..72; 200 of them"""
    for seed in range(200):
        work = workloads.generated(seed)
        all_at_once(work, FEW)
        work.end()


@isolated(timeout=900)
@pytest.mark.timeout(1000)
@pytest.mark.stress
def test_generated_programs_one_at_a_time():
    """KP-26..34, KP-60..72; 20 of them"""
    for seed in range(200, 220):
        work = workloads.generated(seed)
        one_at_a_time(work)
        work.end()


LIBRARIES = {"libz": 0.85, "libm": 0.85, "libsqlite3": 0.65}
"""With the share of all instructions that become jumps when all are probed."""


@isolated(timeout=1500)
@pytest.mark.timeout(1600)
@pytest.mark.stress
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library(name):
    """KP-26..34, KP-60..72: compress and decompress 64 KB; a fixed grid of floats; a fixed SQL script"""
    all_at_once(getattr(workloads, name)(), FEW, LIBRARIES[name])


@isolated(timeout=1500)
@pytest.mark.timeout(1600)
@pytest.mark.stress
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_one_at_a_time(name):
    """KP-26..34, KP-60..72"""
    one_at_a_time(getattr(workloads, name)())
