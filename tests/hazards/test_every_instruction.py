"""HAZARDS 2, 1: a signal at every instruction boundary of every stub, trampoline and handler runs probed functions there.

A tracer steps a child through its hits. At each instruction of their code it sends a signal whose handler calls the same
functions and takes a backtrace, which has to reach the driver below.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from sampled import in_stress, sampled
from stepped import MANNERS
from stepped_events import MANNERS as EVENTS
from stepped_kprobes import MANNERS as KPROBES
from stepped_kprobes import Manner as KprobesManner
from stepped_masks import MANNERS as MASKS
from stepped_switch import MANNERS as SWITCHES
from stepper import Denied, Died, Stepper, started

CHILD, KPROBES_CHILD, SWITCH_CHILD, EVENTS_CHILD, MASKS_CHILD = (
    Path(__file__).with_name(f"stepped{name}.py") for name in ("", "_kprobes", "_switch", "_events", "_masks")
)
CHILDREN = {
    **dict.fromkeys(KPROBES, KPROBES_CHILD),
    **dict.fromkeys(SWITCHES, SWITCH_CHILD),
    **dict.fromkeys(EVENTS, EVENTS_CHILD),
    **dict.fromkeys(MASKS, MASKS_CHILD),
}
ROUNDS, FEW_ROUNDS = 3, 2
ONCE, OFTEN, EVERY = 1, 50, sys.maxsize
"""At how many comings to an instruction."""
FEW_PLACES = {"kprobes, native, stepped": 15, **dict.fromkeys(SWITCHES, 0)}
"""Signals wait while native handlers run on the frame of the breakpoint's; the others are interrupted at one instruction."""


def step_through(manner: str, times: int, rounds: int = ROUNDS) -> tuple[Stepper, dict[str, object]]:
    """Run the child under the tracer; what both counted."""
    command = [sys.executable, str(CHILDREN.get(manner, CHILD)), manner, str(rounds)]
    with started(command) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        first = child.stdout.readline()
        if not first:
            raise AssertionError(child.stderr.read())
        stepper = Stepper(child.pid, [tuple(span) for span in json.loads(first)], times)
        try:
            stepper.attach()
        except Denied as error:
            child.kill()
            pytest.skip(f"ptrace: {error}")
        child.stdin.write("\n")
        child.stdin.flush()
        try:
            stepper.follow(rounds)
        except Died as error:
            raise AssertionError(f"{error}: {child.communicate(timeout=60)}") from None
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, f"{out}\n{err}"
        return stepper, json.loads(out)


def hold(manner: str, times: int, rounds: int = ROUNDS) -> None:
    stepper, told = step_through(manner, times, rounds)
    assert told["complaints"] == []
    assert told["handled"] == stepper.injected
    assert len(stepper.reached) > FEW_PLACES.get(manner, 20)


@pytest.mark.parametrize(
    "manner",
    [
        "both, a word",
        "a new record",
        in_stress("registers"),
        in_stress("four probes"),
        *map(in_stress, ("jumps, a kretprobe", "both, 8 and 200 bytes", "one node", "mcount")),
    ],
)
def test_a_signal_at_every_instruction(manner: str) -> None:
    """The other manners, and each coming to an instruction, are under the marker `stress`."""
    hold(manner, ONCE, FEW_ROUNDS)


@pytest.mark.stress
@pytest.mark.parametrize(
    "manner",
    [each if each == "r" else in_stress(each) for each in EVENTS],
)
def test_a_signal_at_every_instruction_of_what_is_recorded_early(manner: str) -> None:
    hold(manner, ONCE, FEW_ROUNDS)


@pytest.mark.parametrize("manner", sampled(SWITCHES, 1))
def test_a_pool_that_another_thread_switches_during_a_signal_keeps_its_nodes(manner: str) -> None:
    """Neither is one lost for ever, nor are there more of them."""
    hold(manner, ONCE)


@pytest.mark.stress
@pytest.mark.parametrize("manner", MASKS)
def test_a_signal_at_every_instruction_of_calls_that_block_signals(manner: str) -> None:
    hold(manner, ONCE, FEW_ROUNDS)


@pytest.mark.stress
@pytest.mark.parametrize("manner", MANNERS)
def test_a_signal_at_every_instruction_each_time(manner: str) -> None:
    hold(manner, ONCE if MANNERS[manner].jumping else EVERY)  # or each round of a search finds one more dead call


@pytest.mark.stress
@pytest.mark.parametrize(
    "manner",
    [
        "kprobes, C, stepped",
        *map(in_stress, ("kretprobes, C, optimized", "kprobes, native, optimized")),
    ],
)
def test_a_signal_at_every_instruction_of_kprobes(manner: str) -> None:
    hold(manner, ONCE, FEW_ROUNDS)


@pytest.mark.stress
@pytest.mark.parametrize("manner", KPROBES)
def test_a_signal_at_every_instruction_of_kprobes_often(manner: str) -> None:
    hold(manner, comings(KPROBES[manner]))


def comings(manner: KprobesManner) -> int:
    """The interpreter is long, and so is a search for dead calls; a kretprobe's list retries while it is changed meanwhile."""
    if manner.handlers == "Python" or manner.jumping:
        return ONCE
    return OFTEN if manner.returns else EVERY


def test_a_time_limit_ends_the_child_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test would wait for it for ever."""
    traced = []

    def stretch(self: Stepper) -> None:
        traced.append(self.pid)
        raise TimeoutError

    monkeypatch.setattr(Stepper, "_stretch", stretch)
    late = threading.Timer(30, lambda: [os.kill(pid, signal.SIGKILL) for pid in traced])
    late.start()
    with pytest.raises(TimeoutError):
        step_through("both, a word", ONCE)
    assert late.is_alive()
    late.cancel()


if __name__ == "__main__":
    for name in sys.argv[2:] or [*MANNERS, *KPROBES]:
        begun = time.monotonic()
        stepper, told = step_through(name, {"once": ONCE, "often": OFTEN, "every": EVERY}[sys.argv[1]])
        print(f"{name}: {len(stepper.reached)} places, {stepper.injected} signals, {stepper.steps} steps,"
              f" {time.monotonic() - begun:.1f} s, {told}", flush=True)  # fmt: skip
