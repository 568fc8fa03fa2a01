"""What has changed: rows, the rank test, the red and blue graph."""

from __future__ import annotations

import itertools
import math
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fprobe.report.difference import changes, lines, mann_whitney
from fprobe.report.difference_graph import svg
from fprobe.report.style import Plain

SVG = "{http://www.w3.org/2000/svg}"


def statistic(one, other):
    return sum((a > b) + (a == b) / 2 for a in one for b in other)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # the machine is, sometimes
@given(st.lists(st.integers(0, 1000), min_size=4, max_size=9, unique=True), st.integers(2, 7))
def test_without_ties_the_rank_test_is_that_of_all_arrangements(values, size):
    one, other = values[: min(size, len(values) - 2)], values[min(size, len(values) - 2) :]
    middle = len(one) * len(other) / 2
    far = abs(statistic(one, other) - middle)
    every = [
        abs(statistic(chosen, [each for each in values if each not in chosen]) - middle) >= far
        for chosen in itertools.combinations(values, len(one))
    ]
    assert mann_whitney(one, other) == pytest.approx(min(1, sum(every) / len(every)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [4, 5, 6], 0.1),
        ([5, 5], [5, 5], 1.0),
        ([1, 1, 2, 2, 3], [2, 3, 3, 4, 4], 0.0524),  # by hand: U = 3, variance 25/12 * (11 - 60/90), z = -9 / 4.64
    ],
)
def test_the_rank_test_of_small_samples(one, other, expected):
    assert mann_whitney(one, other) == mann_whitney(other, one) == pytest.approx(expected, abs=1e-3)


def test_rows_have_medians_and_say_what_exists_in_one_only():
    rows = {row.name: row for row in changes([{"f": 10, "g": 5}, {"f": 30}, {"f": 20}], [{"f": 50}, {"f": 70, "h": 1}])}
    assert (rows["f"].before, rows["f"].after, rows["f"].change, rows["f"].relative) == (20, 60, 40, 2)
    assert (rows["g"].only_in, rows["h"].only_in, rows["f"].only_in) == ("A", "B", "")
    assert 0 < rows["f"].p < 1
    (row,) = changes([{}], [{"new": 7}])
    assert row.p is None and math.isinf(row.relative)


def test_the_graph_is_red_where_it_grew_and_hides_nothing_that_is_gone():
    before = {("main", "gone <x>"): 100.0, ("main", "kept"): 100.0}
    after = {("main", "kept"): 300.0, ("main", "new"): 50.0}
    root = ElementTree.fromstring(svg(before, after, "A & B"))
    frames = {group.find(f"{SVG}title").text.split(":")[0]: group.find(f"{SVG}rect") for group in root.iter(f"{SVG}g")}
    colors = {name: (box.get("class"), float(box.get("fill-opacity"))) for name, box in frames.items()}
    assert colors["kept"] == ("longer", 0.73) and colors["gone <x>"] == ("shorter", 1.0)
    style = root.find(f"{SVG}style").text
    assert "prefers-color-scheme: dark" in style and {f".{kind}" for kind, _ in colors.values()} <= {*style.split()}
    assert any("width: the larger of both times" in (each.text or "") for each in root.iter(f"{SVG}text"))
    widths = {name: float(box.get("width")) for name, box in frames.items()}
    assert widths["main"] == widths["all"] == 1200
    assert widths["kept"] == pytest.approx(1200 * 300 / 450, abs=0.1)
    assert widths["gone <x>"] == pytest.approx(2 * widths["new"], abs=0.2)
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert "gone <x>: 100 ns -> 0 ns, only in A" in titles and "new: 0 ns -> 50 ns, only in B" in titles


def test_an_empty_graph_is_one():
    assert ElementTree.fromstring(svg({}, {}, "nothing")).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("width", "columns"),
    [(None, "A B B - A CHANGE P"), (110, "A B B - A CHANGE P"), (75, "B B - A CHANGE"), (40, "B - A"), (20, "B - A")],
)
def test_a_table_fits_on_a_terminal(width, columns):
    """It was as wide as its longest name."""
    names = ["app::Engine::first_function_of_a_long_name", "app::Engine::other_function_of_a_long_name"]
    sides = [[dict.fromkeys(names, float(value))] * 2 for value in (100, 300)]
    table = list(lines(changes(*sides), "self", "FUNCTION", Plain(), width))
    assert width is None or all(len(line) < width for line in table)
    assert table[0].split("  FUNC")[0].split() == columns.split() and len(set(table)) == 3
