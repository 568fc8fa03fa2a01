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


@pytest.fixture
def target():
    """A running program to attach to."""
    made = Target()
    yield made
    made.end()
