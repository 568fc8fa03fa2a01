"""The list of results, and reading what ftracetest prints."""

from __future__ import annotations

from tests.ftracetest.__main__ import parse
from tests.ftracetest.results import REASONS, RESULTS, compared, read


def test_each_test_that_does_not_pass_has_a_reason():
    results = read(RESULTS)
    assert {name for name, result in results.items() if result != "PASS"} == set(REASONS)
    assert list(results.values()).count("PASS") >= 122


def test_runs_are_told_apart_by_their_numbers():
    output = "[1] One test\t[PASS]\n[2] Another\t[FAIL]\n[3] (instance)  Another\t[UNSUPPORTED]\n"
    results = parse(output, ["a/one", "a/other"], ["a/other"])
    assert results == {"a/one": "PASS", "a/other": "FAIL", "a/other (instance)": "UNSUPPORTED"}
    assert list(compared(results, results | {"a/one": "FAIL"})) == ["a/one: PASS, listed as FAIL"]
