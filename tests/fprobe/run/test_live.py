"""The table of `fprobe top`, from what was counted."""

from __future__ import annotations

from fprobe.run.launcher.live import Table, View
from fprobe.run.launcher.results import Calls, Process, Results

ASKED, FIRST, SECOND = 0x1000, 0x2000, 0x3000


def process(pid, calls):
    made = Process(pid)
    made.names.take_functions([(ASKED, "asked", "libx.so.1"), (FIRST, "first", "app.so"), (SECOND, "second", "app.so")])
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
    head, heads, row = table.text(View("name", 1.0, None), 1.0, 100, 200)
    assert head.startswith("1 functions called, ") and "rows by" not in head and heads.endswith("FUNCTION")
    assert row.split()[0] == "9" and row.endswith("asked [libx]")
