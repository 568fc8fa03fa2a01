"""`make matrix`: which interpreters are found, and what is said of those that are not there."""

from __future__ import annotations

import pytest

from tests import pythons

INTERPRETER = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pytest "*) exit CODE ;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes an interpreter of a name below the machine's PATH (bin) or pyenv (versions), whose pytest ends with this code."""
    monkeypatch.setattr(pythons, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(pythons, "versions", lambda: ["3.97", "3.98", "3.99"])

    def make(path, code=0):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(INTERPRETER.replace("CODE", str(code)))
        file.chmod(0o755)
        return str(file)

    return make


def test_the_versions_are_those_that_the_project_names():
    assert pythons.versions()[0] == "3.10" and pythons.versions()[-1] == "3.15"


def test_those_that_are_there_are_run_and_the_others_named(machine, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["matrix"])
    assert pythons.main() == 1  # none is there
    machine("versions/3.97.9/bin/python3.97", code=3)
    newest, on_path = machine("versions/3.97.10/bin/python3.97"), machine("bin/python3.98")
    assert (pythons.interpreter("3.97"), pythons.interpreter("3.98")) == (newest, on_path)
    capsys.readouterr()
    assert pythons.main() == 0
    said = capsys.readouterr().out.splitlines()[-3:]
    assert said[:2] == ["3.97  passed", "3.98  passed"] and said[2].startswith("3.99  not there: no python3.99 in PATH")


def test_a_failure_is_the_runs_failure(machine, monkeypatch, capsys):
    machine("bin/python3.97", code=1)
    machine("bin/python3.98")
    monkeypatch.setattr("sys.argv", ["matrix", "tests/ftrace"])
    assert pythons.main() == 1
    assert capsys.readouterr().out.splitlines()[-3:-1] == ["3.97  failed (exit code 1 of pytest)", "3.98  passed"]
