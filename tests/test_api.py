"""docs/api.md is what the code says."""

from __future__ import annotations

import importlib
import sys
from enum import Enum

import pytest

from tests import api


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="signatures read differently in other Pythons than 3.11")
def test_the_page_is_up_to_date():
    assert api.FILE.read_text() == api.page(), f"run `{api.COMMAND}`"


@pytest.mark.parametrize("name", [name for name in api.MODULES if not api.MODULES[name]])
def test_every_public_name_is_there(name):
    page = api.FILE.read_text()
    missing = [each for each in importlib.import_module(name).__all__ if f"`{name}.{each} = " not in page]
    assert [each for each in missing if f"### {name}.{each}\n" not in page and each != "IMPORTED"] == []


class _Size(Enum):
    SMALL = 1


class _Base:
    def inherited(self, x: int) -> None:
        """From the base."""

    def changed(self) -> None:
        """As it was."""


class _Derived(_Base):
    def changed(self, size: _Size = _Size.SMALL) -> str:
        """As it is."""

    def undescribed(self) -> None: ...

    def _private(self) -> None:
        """Not shown."""


def test_members_are_the_described_ones_with_those_of_bases(monkeypatch):
    monkeypatch.setattr(api, "_OURS", (__name__.partition(".")[0],))
    assert {name: found.__doc__ for name, found in api.members(_Derived).items()} == {
        "changed": "As it is.",
        "inherited": "From the base.",
    }


def test_signatures_are_python_without_self():
    assert api._signature("f", _Derived.changed, bound=True) == "f(size: _Size = _Size.SMALL) -> str"
    assert api._signature("f", _Base.inherited) == "f(self, x: int) -> None"


def test_long_signatures_have_a_line_for_each_parameter():
    line = "f(a: Callable[[int, str], None], /, b: int = 1, *, c: dict[str, int]) -> None"
    shown = [
        "f(",
        "    a: Callable[[int, str], None],",
        "    /,",
        "    b: int = 1,",
        "    *,",
        "    c: dict[str, int],",
    ]
    assert api._on_lines(line).split("\n") == [*shown, ") -> None"]


def _with_example():
    """What it does.

        first()

        second('x')

    And why.
    """


def test_examples_are_blocks_of_code():
    shown = ["What it does.", "", "```python", "first()", "", "second('x')", "```", "", "And why."]
    assert api._doc(_with_example).split("\n") == shown
