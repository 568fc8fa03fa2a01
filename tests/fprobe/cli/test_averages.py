"""Averages are over the calls that returned: a call that an exception ends is a hit, but has no duration."""

import pytest
from sampled import sampled

SOURCE = """
#include <ctime>
extern "C" __attribute__((noinline)) int naps(int n) {
  timespec time{0, 1000000};
  nanosleep(&time, nullptr);
  if (n % 4) throw n;
  return n;
}
extern "C" int runs(int count) {
  int sum = 0;
  for (int i = 0; i < count; i++) try { sum += naps(i); } catch (int) { sum++; }
  return sum;
}
"""
LEAST = 1000
"""Microseconds of a call."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("averages") / "naps.cpp"
    path.write_text(SOURCE)
    return path


def shown(run, source, *words):
    return run(*words, "--program", str(source), "--call", "runs", "8").out


@pytest.mark.parametrize("by", sampled(["function", "caller", "thread"], 1))
def test_the_average_of_stat_is_between_the_shortest_and_the_longest(run, source, by):
    rows = [line.split() for line in shown(run, source, "stat", "naps", "--by", by).splitlines()]
    head = next(row for row in rows if "AVERAGE" in row)
    row = next(row for row in rows if "naps" in row)
    average, least, most = (float(row[2 * head.index(name)]) for name in ("AVERAGE", "MIN", "MAX"))  # with a unit each
    assert LEAST / 1000 <= least <= average <= most
