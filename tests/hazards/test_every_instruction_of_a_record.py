"""HAZARDS 2: a signal at each instruction of a record; its handler records, or leaves the record behind by siglongjmp."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from sampled import in_stress
from stepper import Denied, Died, Span, Stepper, started

CHILD = Path(__file__).with_name("stepped_recording.py")


class AtEachStep(Stepper):
    """Sends one signal in each stretch: in the n-th at its n-th instruction, so that nothing has come before it."""

    def __init__(self, pid: int, spans: Sequence[Span], first: int, stride: int) -> None:
        super().__init__(pid, spans, sys.maxsize)
        self._at, self._stride, self._step = first, stride, 0
        self.past_the_end = 0

    def _stretch(self) -> None:
        self._step, before = 0, self.injected
        super()._stretch()
        self.past_the_end += self.injected == before
        self._at += self._stride

    def _wanted(self, address: int) -> bool:
        if not super()._wanted(address):
            return False
        self._interrupted = 0
        self._step += 1
        if self._step != self._at:
            return False
        self._interrupted = address
        return True


def step_through(manner: str, rounds: int, stride: int = 0) -> Stepper:
    """Run the child under the tracer; its complaints fail the test."""
    command = [sys.executable, str(CHILD), manner, str(rounds)]
    with started(command) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        first = child.stdout.readline()
        if not first:
            raise AssertionError(child.stderr.read())
        spans = [(start, end) for start, end in json.loads(first)]
        stepper = AtEachStep(child.pid, spans, 1, stride) if stride else Stepper(child.pid, spans)
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
        assert child.returncode == 0, f"{out[-3000:]}\n{err[-3000:]}"
        assert json.loads(out)["handled"] == stepper.injected
        return stepper


@pytest.mark.stress
@pytest.mark.parametrize("manner", ["room", in_stress("full")])
def test_a_nested_record_at_every_instruction(manner: str) -> None:
    assert len(step_through(manner, 3).reached) > 80


@pytest.mark.parametrize(
    ("manner", "rounds", "stride"),
    [
        in_stress(("room", 12, 10)),
        in_stress(("full", 20, 26)),
        ("full, pages", 9, 8),
        in_stress(("jump, full", 28, 19)),
        pytest.param("direct", 14, 8, marks=pytest.mark.stress),
        pytest.param("room", 60, 2, marks=pytest.mark.stress),
        pytest.param("direct", 110, 1, marks=pytest.mark.stress),
        pytest.param("full", 130, 4, marks=pytest.mark.stress),
        pytest.param("full, pages", 70, 1, marks=pytest.mark.stress),
        pytest.param("jump", 60, 2, marks=pytest.mark.stress),
        pytest.param("jump, full", 90, 6, marks=pytest.mark.stress),
    ],
)
def test_one_nested_record_or_jump_at_each_step_of_a_record(manner: str, rounds: int, stride: int) -> None:
    stepper = step_through(manner, rounds, stride)
    assert stepper.injected > rounds // 2


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("manner", "steps"), [("room", 700), ("full", 1500), ("jump", 700), ("jump, full", 1500)])
def test_one_nested_record_or_jump_at_each_single_step(manner: str, steps: int) -> None:
    """`steps`: more than a record takes; a new page takes more."""
    stepper = step_through(manner, steps, 1)
    assert isinstance(stepper, AtEachStep) and stepper.past_the_end > 0
