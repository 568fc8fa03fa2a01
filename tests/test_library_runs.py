"""`make libraries`: what is said of tests that have not been run."""

from __future__ import annotations

import platform

import pytest

from tests.libraries.__main__ import outcome, row, wrong
from tests.libraries.suites import of_cpython

FIGURES = {"functions": 1, "ways": {"jump": 1}, "counts": {"hits": 3, "missed": 0}, "skipped": {}, "attach_s": 0.5}


def probed(outcomes, hits=7):
    library = {"counts": {"hits": hits}}
    return {"outcomes": outcomes, "pending": [], "entered": hits, "left": hits, "libraries": {"libx": library}}


def test_a_module_that_cannot_be_imported_is_not_run(tmp_path, monkeypatch):
    import test

    (tmp_path / "test_absent_part.py").write_text("import surely_absent")
    (tmp_path / "test_unwanted.py").write_text("import unittest\nraise unittest.SkipTest('no surely_absent')")
    monkeypatch.setattr(test, "__path__", [*test.__path__, str(tmp_path)])
    found = of_cpython(("test_surely_absent", "test_absent_part", "test_unwanted"))
    assert found == {
        "test_surely_absent": "not run: No module named 'test.test_surely_absent'",
        "test_absent_part": "not run: No module named 'surely_absent'",
        "test_unwanted": "not run: no surely_absent",
    }


def test_tests_of_a_module_that_is_there_are_run():
    pytest.importorskip("test.test_hmac", reason="Debian has Python's own tests in a package")
    found = of_cpython(("test_hmac",))
    ran = [each for each in found.values() if each != "skipped"]  # some need what OpenSSL leaves out
    assert set(ran) == {"ok"} and len(ran) > 10


def test_what_was_not_run_is_no_test_that_is_the_same_and_ends_in_an_error():
    outcomes = {"a": "ok", "b": "skipped", "test_c": "not run: No module named 'test.test_c'"}
    assert outcome(probed(outcomes), probed(outcomes)) == "2 the same; not run: test_c"
    assert outcome(*[probed({"test_c": "not run: "})] * 2) == "none; not run: test_c"
    assert wrong(probed(outcomes), probed(outcomes)) == ["test_c was not run: No module named 'test.test_c'"]


def test_a_library_of_which_nothing_was_called_is_an_error():
    """As libexpat, where Python has its own copy inside."""
    plain, none = probed({"a": "ok"}), probed({"a": "ok"}, hits=0)
    assert wrong(plain, none) == ["no function of libx was called: does this Python have its own copy inside?"]


def test_other_outcomes_are_named():
    plain, other = probed({"a": "ok", "b": "ok"}), probed({"a": "ok", "b": "failure"})
    assert outcome(plain, other) == "DIFFERENT"
    assert wrong(plain, other) == ["b: ok without, failure with probes"]
    assert outcome(plain, plain) == "2 the same"
    assert wrong(plain, plain) == []


def test_a_row_names_the_interpreter():
    python = platform.python_version()
    assert row("libx", FIGURES, {1: "jump"}, "2 the same", python).split(" | ")[-3:-1] == [python, "2 the same"]
