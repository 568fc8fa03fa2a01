"""A kprobe on every instruction leaves every result as it was and counts right: stepped, boosted, and as a jump.

*All at once*: on all instructions of the code, whether the work comes by or not. *One at a time*: on each that it comes by, with
no other probe. Each mode has a fork of its own, since what has once been made of an address stays (it is boosted, or not).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest
import stepping
import workloads
from every import MODES, Counting, Probed, counting, set_mode
from forked import forked
from instructions import boundaries
from isolation import isolated
from workloads import Work

ACCEPTED = ("is too long for its slot", "is a trap itself")
"""Why an instruction of compiled code may be refused."""
FEW = MODES[0:3:2]


@pytest.fixture(autouse=True, scope="module")
def _tracing():
    if not stepping.can_trace():
        pytest.skip("this machine does not let a process trace its own child")


class Expected(NamedTuple):
    """What work gives without probes, and how often a tracer sees each instruction."""

    result: object
    steps: Counter[int]


def expected_of(work: Work) -> Expected:
    began, result = time.monotonic(), work.run()
    steps = stepping.traced(work.spans, work.run)
    print(f"{work.name}: {len(steps)} instructions, {steps.total()} hits, {since(began)}", flush=True)
    return Expected(result, steps)


def since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def check(work: Work, expected: Expected, probed: Probed, count: Counting) -> None:
    """Results as without probes, counts as a tracer's, nothing missed or refused without a reason."""
    unknown = [str(error) for error in probed.refused.values() if not any(why in str(error) for why in ACCEPTED)]
    assert not unknown, unknown[:5]
    result, counts = count.counts(work.run)
    assert result == expected.result
    addresses = {p.addr for p in probed.probes}
    wrong = {hex(ip): (counts[ip], expected.steps[ip]) for ip in addresses if counts[ip] != expected.steps[ip]}
    assert not wrong, (len(wrong), list(wrong.items())[:10])
    assert set(counts) <= addresses
    assert probed.missed() == 0


class Tally:
    """What has become of the probes in all, so that a mode is what it is called."""

    def __init__(self) -> None:
        self.probes = self.refused = self.jumps = self.boosted = 0

    def add(self, probed: Probed) -> None:
        self.probes += probed.not_on_ftrace
        self.refused += len(probed.refused)
        self.jumps += probed.jumps
        self.boosted += probed.boosted

    def check(self, mode: str, least: float) -> None:
        jumps, boosted = self.jumps / self.probes, self.boosted / self.probes
        assert jumps > least if mode.startswith("optimized") else jumps == 0, str(self)
        assert boosted == 0 if mode == "int3" else boosted > 0.4, str(self)

    def __str__(self) -> str:
        return f"{self.probes} probes, {self.refused} refused, {self.boosted} boosted, {self.jumps} jumps"


class Manner(NamedTuple):
    """In what groups the addresses are probed, one group after the other."""

    name: str
    groups: Sequence[Sequence[int]]
    dense: bool = False
    least: float = 0.9
    """The share of probes that become jumps, where they may."""


def in_turn(work: Work, expected: Expected, manner: Manner, mode: str) -> None:
    began, tally, count = time.monotonic(), Tally(), counting(size_of(manner))
    set_mode(mode, manner.dense)
    for group in manner.groups:
        probed = Probed(group, mode, count)
        check(work, expected, probed, count)
        tally.add(probed)
        probed.close()
    tally.check(mode, manner.least)
    assert work.run() == expected.result
    print(f"    {manner.name}, {mode}: {tally}, {since(began)}", flush=True)


def size_of(manner: Manner) -> int:
    """In bits: of the largest group."""
    return (max(map(len, manner.groups)) - 1).bit_length()


def in_forks(work: Work, expected: Expected, manner: Manner, modes: Sequence[str]) -> None:
    counting(size_of(manner))
    for mode in modes:
        forked(f"{work.name}, {manner.name}, {mode}", partial(in_turn, work, expected, manner, mode))


def all_at_once(work: Work, least: float = 0.85) -> Manner:
    everywhere = [at for start, end in work.spans for at in boundaries(start, end)]
    return Manner("all at once", [everywhere], dense=True, least=least)


def one_at_a_time(expected: Expected) -> Manner:
    return Manner("one at a time", [[at] for at in sorted(expected.steps)])


@isolated(timeout=110)
@pytest.mark.parametrize("modes", [FEW, pytest.param(MODES[1::2], marks=pytest.mark.stress)])
def test_the_demo_program(modes):
    """KP-26..34, KP-60..72"""
    work = workloads.demo()
    in_forks(work, expected_of(work), all_at_once(work), modes)


@isolated(timeout=800)
@pytest.mark.timeout(900)
@pytest.mark.stress
def test_the_demo_program_one_at_a_time():
    """KP-26..34, KP-60..72"""
    work = workloads.demo()
    expected = expected_of(work)
    in_forks(work, expected, one_at_a_time(expected), MODES)


PROGRAMS, BATCH = 200, 25


@isolated(timeout=1100)
@pytest.mark.timeout(1200)
@pytest.mark.stress
@pytest.mark.parametrize("first", range(0, PROGRAMS, BATCH))
def test_generated_programs(first):
    """KP-26..34, KP-60..72; 200 of them, one at a time and all at once"""
    for seed in range(first, first + BATCH):
        work = workloads.generated(seed)
        expected = expected_of(work)
        in_forks(work, expected, all_at_once(work), FEW)
        in_forks(work, expected, one_at_a_time(expected), FEW)
        work.end()


LIBRARIES = {"libz": 0.85, "libm": 0.85, "libsqlite3": 0.65}
"""With the share of all instructions that become jumps when all are probed."""


@isolated(timeout=2300)
@pytest.mark.timeout(2400)
@pytest.mark.stress
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library(name):
    """KP-26..34, KP-60..72: compress and decompress 64 KB; a fixed grid of floats; a fixed SQL script"""
    work = getattr(workloads, name)()
    expected = expected_of(work)
    in_forks(work, expected, one_at_a_time(expected), FEW)
    in_forks(work, expected, all_at_once(work, LIBRARIES[name]), FEW)
