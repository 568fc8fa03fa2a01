"""The table of `fprobe top`, from what was counted."""

from __future__ import annotations

import pytest

from fprobe.report.columns import shortened
from fprobe.run.launcher.live import Table
from fprobe.run.launcher.process import Process
from fprobe.run.launcher.results import Calls, Results
from fprobe.run.launcher.top_view import TopView

ASKED, FIRST, SECOND = 0x1000, 0x2000, 0x3000


def process(pid, calls):
    made = Process(pid)
    made.names.take_functions(
        [(ASKED, "asked", "libx.so.1", ""), (FIRST, "first", "app.so", ""), (SECOND, "second", "app.so", "")]
    )
    made.calls = {(each.ip, each.by): each for each in calls}
    return made


def looked(by, *looks):
    table = Table(by)
    for processes in looks:
        table.update(Results(processes, {}, 0), 2.0)
    return table


def test_rows_by_caller_add_up_over_processes_and_have_rates_of_their_own():
    before = [process(1, [Calls(ASKED, FIRST, hits=2)])]
    after = [
        process(1, [Calls(ASKED, FIRST, hits=5), Calls(ASKED, SECOND, hits=4)]),
        process(2, [Calls(ASKED, FIRST, hits=3)]),
    ]
    table = looked("caller", before, after)
    rows = {(str(row.name), row.group): (row.calls.hits, row.rate) for row in table.rows.values()}
    assert rows == {("asked [libx]", " <- first [app]"): (8, 3.0), ("asked [libx]", " <- second [app]"): (4, 2.0)}


def test_rows_of_functions_hold_the_calls_of_all_callers():
    table = looked("function", [process(1, [Calls(ASKED, FIRST, hits=5), Calls(ASKED, SECOND, hits=4)])])
    head, heads, row = table.text(TopView("name", 1.0, None), 1.0, 100, 200)
    assert head.startswith("1 functions called, ") and "rows by" not in head and heads.endswith("FUNCTION")
    assert row.split()[0] == "9" and row.endswith("asked [libx]")


NAMES = ["sqlite3_step", "libsqlite3.so.0+0xbd810", "std::map<int, long>::insert_or_assign(int const&, long&&)"]


def named(names):
    made = Process(1)
    made.names.take_functions([(number, name, "libx.so.1", "") for number, name in enumerate(names, 1)])
    made.calls = {(number, 0): Calls(number, 0, hits=number) for number in range(1, len(names) + 1)}
    return looked("function", [made])


@pytest.mark.parametrize("width", [1, 5, 20, 40, 60, 79, 80, 100, 120, 250])
def test_rows_fit_and_differ_at_every_width(width):
    names = [*NAMES, *(f"{'x' * 80}{number}{'y' * 80}" for number in range(30))]
    head, heads, *rows = named(names).text(TopView("calls", 1.0, None), 1.0, 1000, width)
    assert all(len(line) <= width for line in (head, heads, *rows)) and len(rows) == len(names)
    assert width < 20 or len({row.split()[-2] + row.split()[-1] for row in rows}) == len(names)
    assert width < 60 or "sqlite3_step [libx]" in [*rows][-1]


@pytest.mark.parametrize(
    ("width", "sort", "heads"),
    [
        (250, "total", ["CALLS", "CALLS/S", "TOTAL", "SELF", "AVERAGE", "P50", "P99", "GRAPH", "FUNCTION"]),
        (80, "total", ["CALLS", "CALLS/S", "TOTAL", "SELF", "FUNCTION"]),
        (80, "p50", ["CALLS", "CALLS/S", "TOTAL", "P50", "FUNCTION"]),
        (30, "rate", ["CALLS/S", "FUNCTION"]),
    ],
)
def test_columns_give_way_to_long_names_but_for_the_one_of_the_order(width, sort, heads):
    _, shown, *_ = named(NAMES).text(TopView(sort, 1.0, None), 1.0, 100, width)
    assert shown.split() == heads


def test_short_names_leave_all_numbers_at_80():
    _, shown, row = named(["deflate"]).text(TopView("total", 1.0, None), 1.0, 100, 80)
    assert len(shown.split()) == 8 and "GRAPH" not in shown and row.endswith(" deflate [libx]")


def test_a_number_that_is_wider_than_its_column_is_shown_whole():
    made = process(1, [Calls(ASKED, 0, hits=12_345_678_901_234)])
    *_, row = looked("function", [made]).text(TopView("calls", 1.0, None), 1.0, 100, 80)
    assert row.startswith("12,345,678,901,234 ")


def test_names_are_cut_in_the_middle_and_told_apart():
    assert shortened(["short", "a" * 9 + "b", "a" * 9 + "b", "a" * 4 + "c" * 2 + "a" * 3 + "b"], 7) == [
        "short", "aaa…aab", "aaa…aab", "aa…ab~2",
    ]  # fmt: skip
