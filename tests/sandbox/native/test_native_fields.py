"""What is found out about the fields that a function uses through a parameter; in doubt nothing is."""

from __future__ import annotations

import native_fields
import pytest

from sandbox.native.front.fields import fields_used

FOUND = {
    "nothing": ("", ""),
    "reads": ("xy", ""),
    "writes": ("", "z"),
    "updates": ("xy", "x"),
    "loops": ("xyz", "z"),
    "passes_on": ("xyz", "z"),
    "recurs": ("xy", ""),
    "passes_a_value": ("x", ""),
    "calls_own_code": ("x", ""),
}
UNKNOWN = (
    "keeps", "compares", "indexes", "takes_an_address", "takes_an_array", "aliases", "changes", "gives_away",
    "passes_on_to_one_that_keeps", "calls_through_a_pointer",
)  # fmt: skip


def found(name):
    return fields_used(getattr(native_fields, name).typed, "p")


@pytest.mark.parametrize("name", FOUND)
def test_fields_that_are_used(name):
    used = found(name)
    assert ("".join(sorted(used.read)), "".join(sorted(used.written))) == FOUND[name]


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_goes_further_is_not_known(name):
    assert found(name) is None
