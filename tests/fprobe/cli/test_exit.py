"""A program that calls `exit`: the summary is there, and what it printed too."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(("status", "code"), [(0, 0), (3, 1)])
def test_trace(run, programs, status, code):
    found = run("trace", "*", "--program", "exits.ll", "--call", "main", status, code=code, cwd=programs).out
    assert f"leave(status={status}) {{" in found
    assert "bye\n" in found
    assert (
        f"main({status}) called exit({status})\n2 functions matched: 2 attached, 0 skipped\n2 hits, 0 misses\n" in found
    )
    assert "not returned: main > leave" in found


def test_trace_json(run, programs):
    found = run("trace", "*", "--program", "exits.ll", "--call", "main", "3", "--json", code=1, cwd=programs)
    assert (found.objects[-1]["type"], found.objects[-1]["exited"]) == ("summary", 3)
    assert found.err == "bye\n"


def test_stat_json(run, programs):
    found = run("stat", "*", "--program", "exits.ll", "--call", "main", "0", "--json", cwd=programs).document
    assert (found["result"], found["exited"]) == (None, 0)
    assert {row["name"]: row["hits"] for row in found["functions"]} == {"main": 1, "leave": 1}
