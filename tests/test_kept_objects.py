"""Objects of earlier runs are used as long as what has compiled them is the same."""

from __future__ import annotations

import pytest
from kept_objects import OTHER_MACHINES, ROOT, compilers, kept_objects


@pytest.fixture
def parent(tmp_path, monkeypatch):
    for name in OTHER_MACHINES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "objects").mkdir()
    (tmp_path / "compilers" / "native" / "back").mkdir(parents=True)
    return tmp_path / "objects"


def test_what_a_changed_compiler_has_made_is_not_used_and_is_deleted(parent):
    folder = parent.with_name("compilers")
    module = folder / "native" / "back" / "lower.py"
    module.write_text("one")
    before = kept_objects(parent, folder)
    before.mkdir()
    assert kept_objects(parent, folder) == before and before.exists()
    module.write_text("two")
    assert kept_objects(parent, folder) != before and not before.exists()


def test_a_change_elsewhere_keeps_them_until_a_compiler_imports_it(parent):
    folder = parent.with_name("compilers")
    other, module = folder / "x86_64" / "syscalls.py", folder / "native" / "back" / "lower.py"
    other.parent.mkdir()
    other.write_text("one")
    module.write_text("def f():\n    import sandbox.native.linking\n")
    (folder / "native" / "linking.py").write_text("from sandbox.x86_64 import syscalls\n")
    before = kept_objects(parent, folder)
    other.write_text("two")
    assert kept_objects(parent, folder) == before
    module.write_text("if True:\n    from sandbox.x86_64 import syscalls\n")
    imported = kept_objects(parent, folder)
    other.write_text("three")
    assert kept_objects(parent, folder) != imported


def test_compilers_import_little_else():
    """What they import changes more often than they do: another folder here is a decision."""
    sandbox = ROOT / "sandbox"
    names = {str(path.relative_to(sandbox)) for path in compilers(sandbox)}
    assert {name.partition("/")[0] for name in names} == {"abi", "compile", "elf", "native", "process", "x86_64"}
    assert {"x86_64/encoding.py", "native/back/lowering.py"} <= names
    assert not {"elf/symbol_search.py", "x86_64/syscalls.py", "native/linking.py"} & names


@pytest.mark.parametrize("name", OTHER_MACHINES)
def test_a_machine_that_lacks_something_compiles_for_itself(parent, monkeypatch, name):
    monkeypatch.setenv(name, "x")
    assert kept_objects(parent) is None
