"""Durations as text, in buckets, and the percentiles and bars of buckets."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fprobe.report.buckets import BUCKETS, bars, limits, percentile, powers
from fprobe.report.counts import Calls, FunctionStat
from fprobe.report.durations import duration, levels

LENIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"), (999.4, "999 ns"), (999.5, "1.000 us"), (1234, "1.234 us"), (999_999, "999.999 us"),
        (999_999.9, "1.000 ms"), (1_000_000, "1.000 ms"), (61e9, "61.000 s"), (1e12, "1000.000 s"),
    ],
)  # fmt: skip
def test_durations(nanoseconds, text):
    assert duration(nanoseconds) == text


def test_levels_are_relative_to_the_largest():
    assert levels([0, 1, 50, 100]) == " ▁▅█" and levels([]) == ""


def bucket_of(ticks):
    """As `ftrace.hit.account.bucket_of`."""
    if ticks < 4:
        return ticks
    bits = ticks.bit_length() - 1
    return (bits - 1) * 4 + (ticks >> (bits - 2) & 3)


def test_each_bucket_begins_where_the_one_before_ends():
    assert limits(0) == (0, 1)
    for bucket in range(BUCKETS):
        low, high = limits(bucket)
        assert bucket_of(low) == bucket_of(high - 1) == bucket
        assert bucket == BUCKETS - 1 or limits(bucket + 1)[0] == high
    assert limits(BUCKETS - 1)[1] == 1 << 61


def counted(durations):
    counts = [0] * BUCKETS
    for each in durations:
        counts[bucket_of(each)] += 1
    return Calls(1, 0, len(durations), 0, len(durations), sum(durations), min(durations), max(durations), counts)


def exactly(durations, share):
    """The shortest of these durations that at least `share` percent of them do not exceed."""
    return sorted(durations)[max(math.ceil(len(durations) * share / 100) - 1, 0)]


DURATIONS = st.integers(0, 1 << 20) | st.integers(0, (1 << 61) - 1)


@LENIENT
@given(st.lists(DURATIONS, min_size=1, max_size=200), st.sampled_from([0, 1, 50, 90, 99, 100]) | st.floats(0, 100))
def test_a_percentile_is_the_exact_one_to_an_eighth(durations, share):
    exact = exactly(durations, share)
    found = counted(durations).percentile(share)
    assert abs(found - exact) <= exact / 8
    assert min(durations) <= found <= max(durations)


def test_the_percentiles_of_a_thousand_calls():
    """Of 1 to 1000 ticks: once 99 percent were 144 of one account, and 159 of the other."""
    stat = FunctionStat(counted(range(1, 1001)), 2.0)
    assert (stat.percentile(50), stat.percentile(99), stat.percentile(100)) == (239.75, 479.75, 479.75)
    assert FunctionStat(Calls(1), 2.0).percentile(99) == 0


@pytest.mark.parametrize("share", [-1, 100.5])
def test_shares_that_are_none(share):
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1], share, 0, 0)


@LENIENT
@given(st.lists(DURATIONS, min_size=1, max_size=50))
def test_bars_count_every_call(durations):
    rows = powers(counted(durations).buckets)
    assert sum(row.calls for row in rows) == len(durations)
    assert rows[0].low <= min(durations) and max(durations) < rows[-1].high
    shown = list(bars(counted(durations).buckets, 1.0))
    assert len(shown) == len(rows) and all(line.endswith("|") for line in shown)
    assert any("|" + "#" * 40 + "|" in line for line in shown)


@LENIENT
@given(st.lists(DURATIONS, min_size=1, max_size=50), st.lists(DURATIONS, min_size=1, max_size=50))
def test_calls_of_two_threads_add_up(one, other):
    both = counted(one)
    both.add(counted(other))
    assert both == counted(one + other)


@pytest.mark.parametrize(("width", "longest"), [(None, 40), (200, 40), (84, 40), (80, 37), (50, 7), (40, 0), (20, 0)])
def test_histograms_fit_on_terminals(width, longest):
    """At 80 columns each line was two characters too long, and one of values 18."""
    counts = [0] * BUCKETS
    counts[16], counts[20], counts[24] = 9, 1, 5
    lines = list(bars(counts, 1.0, width))
    assert max(line.count("#") for line in lines) == longest
    assert width is None or all(len(line) < width for line in lines)
    assert lines[0].split("|")[0].split() == ["32", "ns", "..", "64", "ns", "9"]
