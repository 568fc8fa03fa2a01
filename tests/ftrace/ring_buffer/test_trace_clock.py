"""trace_clock (TE-4.8): what events are stamped by, and how the time-stamp counter is kept to the system's clocks."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from isolation import isolated

from ftrace.hit.ring_buffer import clock_state
from sandbox.native import Unit
from sandbox.native.native_image import NativeImage

NAMES = ["local", "global", "counter", "uptime", "perf", "mono", "mono_raw", "boot", "tai", "x86-tsc"]
FOLLOWED = {
    "local": time.CLOCK_MONOTONIC,
    "global": time.CLOCK_MONOTONIC,
    "perf": time.CLOCK_MONOTONIC,
    "mono": time.CLOCK_MONOTONIC,
    "mono_raw": time.CLOCK_MONOTONIC_RAW,
    "boot": time.CLOCK_BOOTTIME,
    "tai": 11,
}
PAUSE = 0.15
"""Seconds: more than a delta of 27 bits can say."""
CLOSE = 5_000_000
"""Nanoseconds: far less than between two clocks."""


def check_stamps(name: str) -> None:
    """A clock follows the system's, and its stamps go up over page switches and pauses."""
    from recording_native import program, recorded

    from ftrace.ring_buffer.buffer import Buffer

    buffer, module = Buffer(clock=name), program()
    before = time.clock_gettime_ns(FOLLOWED.get(name, time.CLOCK_MONOTONIC))
    with recorded(buffer):
        for pause in (PAUSE, 0):
            for number in range(300):
                module["work"](number, number)
            time.sleep(pause)
    module.unload()
    after = time.clock_gettime_ns(FOLLOWED.get(name, time.CLOCK_MONOTONIC))
    stamps = [record.stamp for record in buffer.records()]
    assert len(stamps) == 600
    assert all(a <= b for a, b in itertools.pairwise(stamps))
    assert buffer.now >= stamps[-1]
    if name in FOLLOWED:
        assert before - CLOSE < stamps[0] <= stamps[-1] < after + CLOSE
        assert stamps[300] - stamps[299] > PAUSE * 0.9e9
    elif name == "counter":
        assert {b - a for a, b in itertools.pairwise(stamps)} <= set(range(1, 10))
    elif name == "uptime":
        assert before // 10_000_000 - 1 <= stamps[0] <= stamps[-1] <= after // 10_000_000 + 1
    else:
        assert stamps[-1] - stamps[0] > 100_000_000


@isolated(timeout=60)
def test_every_clock_stamps_events_in_its_units() -> None:
    for name in NAMES:
        check_stamps(name)


@pytest.mark.stress
@isolated(FPROBE_DENY="tsc")
def test_without_a_usable_counter_the_systems_clocks_are_read() -> None:
    from ftrace.ring_buffer import clock

    for name in ("local", "tai"):
        check_stamps(name)
        assert clock.start(clock.find(name)).kind == clock_state.SYSTEM


def test_the_names_are_those_of_trace_clock() -> None:
    from ftrace.ring_buffer.clock import CLOCKS

    assert [clock.name for clock in CLOCKS] == NAMES
    assert {clock.name for clock in CLOCKS if not clock.in_ns} == {"counter", "uptime", "x86-tsc"}


@pytest.fixture(scope="module")
def arithmetic():
    """The functions of the clock's arithmetic, as machine code."""
    image = NativeImage.of(Unit("clock", [clock_state.scale, clock_state.rate, clock_state.steered]))
    return lambda name, *numbers: image.call(name, *numbers) % (1 << 64)


def test_scaling_is_exact_beyond_64_bits(arithmetic) -> None:
    numbers = random.Random(1)
    for _ in range(1000):
        ticks, mult = numbers.getrandbits(numbers.randint(1, 63)), numbers.getrandbits(32)
        assert arithmetic("scale", ticks, mult) == (ticks * mult >> 32) % (1 << 64)


def test_a_rate_has_32_good_bits(arithmetic) -> None:
    numbers = random.Random(2)
    for _ in range(1000):
        ticks = numbers.randint(1 << 20, 1 << 40)
        passed = ticks * 10 // numbers.randint(11, 60)
        assert abs(arithmetic("rate", passed, ticks) * ticks / (passed << 32) - 1) < 1e-5
    assert arithmetic("rate", 1 << 35, 1 << 37) == 1 << 30


def test_steering_makes_up_for_an_error_and_does_not_overshoot(arithmetic) -> None:
    mult, ticks = 1 << 31, 1 << 32
    for error in (0, 1000, -1000, 1_000_000, -1_000_000):
        gained = (arithmetic("steered", mult, error, ticks) - mult) * ticks >> 32
        assert abs(gained - error) <= 1
    assert arithmetic("steered", mult, -(1 << 40), ticks) == mult - (mult >> 10)
    assert arithmetic("steered", mult, 1 << 40, ticks) == mult + (mult >> 10)


@isolated
def test_a_clock_goes_on_past_the_last_of_its_segments() -> None:
    from ftrace.ring_buffer.buffer import Buffer

    buffer = Buffer(clock="local")
    clock = buffer._live.clock_state
    if clock.kind != clock_state.SCALED:
        return
    last = (clock_state.SEGMENTS - 2) * clock_state.Segment.size
    clock.segments[clock_state.SEGMENTS - 2] = clock.segments[clock.sequence // clock_state.Segment.size]
    clock.sequence = last
    sequences, times = [], []
    for _ in range(4):
        clock.fitted, clock.interval = 0, 1
        times.append(buffer.now)
        sequences.append(clock.sequence // clock_state.Segment.size)
    assert sequences == [clock_state.SEGMENTS - 1, 0, 1, 2]
    assert all(0 <= b - a < CLOSE for a, b in itertools.pairwise(times))
