"""`launch`: run a program by a verb of the command line, and what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from attaching import Target
from command import COMMAND, forked


class Launched(NamedTuple):
    """How the launcher ended, what was printed, and the report as JSON, if it was asked for."""

    returncode: int
    out: str
    err: str
    report: Any

    def functions(self, process=0):
        """Function -> its row, of one process."""
        return {row["name"]: row for row in self.report["processes"][process]["functions"]}


@pytest.fixture
def launch(tmp_path):
    def start(*options, source=None, words=(), verb="run", as_json=True, environ=None):
        if source is not None:
            (tmp_path / "app.py").write_text(textwrap.dedent(source))
            words = (str(tmp_path / "app.py"), *words)
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        output = ("--json", "-o", str(report)) if as_json else ()
        words = [verb, *output, *map(str, (*options, *words))]
        if environ is None:
            done = forked(words, 60)
        else:
            done = subprocess.run(
                [*COMMAND, *words], text=True, capture_output=True, timeout=60, env={**os.environ, **environ}
            )
        found = json.loads(report.read_text()) if report.exists() else None
        return Launched(done.returncode, done.stdout, done.stderr, found)

    return start


class _Shared:
    """The program that the tests of a file attach to, one after the other; a new one if a test has not left it as it was."""

    made = None

    def begin(self):
        if self.made is None:
            self.made = Target()
            self.state = self.made.ask("state")
        self.made.ask("start")
        return self.made

    def end(self):
        self.made.end()
        self.made = None


@pytest.fixture(scope="module")
def _shared():
    shared = _Shared()
    yield shared
    if shared.made:
        shared.end()


@pytest.fixture
def target(_shared):
    """A running program to attach to, whose calls are counted from now on."""
    yield (made := _shared.begin())
    if made.process.poll() is not None or made.ask("state") != _shared.state:
        _shared.end()


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """The current directory, with a directory `bin` of commands."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    return tmp_path
