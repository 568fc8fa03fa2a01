"""Objects of earlier runs are used as long as what has compiled them is the same."""

from __future__ import annotations

import pytest
from kept_objects import COMPILERS, OTHER_MACHINES, kept_objects
from test_imports import _all_imports


@pytest.fixture
def parent(tmp_path, monkeypatch):
    for name in OTHER_MACHINES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "objects").mkdir()
    (tmp_path / "compilers" / "native" / "back").mkdir(parents=True)
    return tmp_path / "objects"


def test_what_a_changed_compiler_has_made_is_not_used_and_is_deleted(parent):
    compilers = parent.with_name("compilers")
    module = compilers / "native" / "back" / "lower.py"
    module.write_text("one")
    before = kept_objects(parent, compilers)
    before.mkdir()
    assert kept_objects(parent, compilers) == before and before.exists()
    module.write_text("two")
    assert kept_objects(parent, compilers) != before and not before.exists()


def test_a_change_elsewhere_keeps_them(parent):
    other = parent.with_name("compilers") / "memory" / "mappings.py"
    other.parent.mkdir()
    other.write_text("one")
    before = kept_objects(parent, parent.with_name("compilers"))
    other.write_text("two")
    assert kept_objects(parent, parent.with_name("compilers")) == before


def test_all_that_the_compilers_import_is_among_them():
    """But for what `native_image` and `linking` do with the finished object."""
    ours = tuple(f"sandbox.{folder}." for folder in COMPILERS)
    modules = {name: found for name, found in _all_imports().items() if name.startswith(ours)}
    assert len(modules) > 60
    del modules["sandbox.native.native_image"], modules["sandbox.native.linking"]
    reached = {each for found in modules.values() for each in found if each.startswith("sandbox.")}
    assert {each for each in reached if not f"{each}.".startswith(ours)} == set()


@pytest.mark.parametrize("name", OTHER_MACHINES)
def test_a_machine_that_lacks_something_compiles_for_itself(parent, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert kept_objects(parent) is None
