"""Suggestions for names that were not found."""

from __future__ import annotations

import difflib
import zlib  # noqa: F401 (the library that is looked at)
from random import Random

from sandbox.process.near import did_you_mean
from sandbox.symbols.libraries import Library, libraries


def test_names_too_short_or_too_long_to_be_similar_are_all_that_is_left_out():
    random = Random(1)
    for _ in range(300):
        names = ["".join(random.choices("ab_", k=random.randrange(12))) for _ in range(30)]
        wanted = "".join(random.choices("ab_", k=random.randrange(12)))
        expected = difflib.get_close_matches(wanted, dict.fromkeys(names), 3)
        assert did_you_mean(wanted, names) == (f"; did you mean {' or '.join(expected)}?" if expected else "")


def test_names_of_impossible_lengths_are_not_compared(monkeypatch):
    compared = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda _name, names, *_bounds: compared.extend(names) or [])
    did_you_mean("inflate", ["a", "in", "inf", "inflateInit2_", "x" * 16, "x" * 17])
    assert compared == ["inf", "inflateInit2_", "x" * 16]


def test_exported_names_of_a_library_are_read_once(monkeypatch):
    libz = next(library for library in libraries() if library.name.startswith("libz."))
    fresh = Library(libz.name, libz.path, libz.base, libz.text, libz.unwind_table)
    names = fresh.exported
    monkeypatch.setattr(Library, "_file", lambda _self: None)
    assert "inflate" in names and fresh.exported == names
