"""Objects of earlier runs are used as long as what has compiled them is the same."""

from __future__ import annotations

import pytest
from kept_objects import OTHER_MACHINES, kept_objects


@pytest.fixture
def parent(tmp_path, monkeypatch):
    for name in OTHER_MACHINES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "objects").mkdir()
    (tmp_path / "compilers" / "back").mkdir(parents=True)
    return tmp_path / "objects"


def test_what_a_changed_compiler_has_made_is_not_used_and_is_deleted(parent):
    compilers = parent.with_name("compilers")
    module = compilers / "back" / "lower.py"
    module.write_text("one")
    before = kept_objects(parent, compilers)
    before.mkdir()
    assert kept_objects(parent, compilers) == before and before.exists()
    module.write_text("two")
    assert kept_objects(parent, compilers) != before and not before.exists()


@pytest.mark.parametrize("name", OTHER_MACHINES)
def test_a_machine_that_lacks_something_compiles_for_itself(parent, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert kept_objects(parent) is None
