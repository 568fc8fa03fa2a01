"""Programs do under `fprobe run` what they do under python: exit code, standard output, standard error."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from run_corpus import PROGRAMS

QUICK = (
    "prints",
    "a chain of exceptions",
    "SIGSEGV",
    "the environment",
    "fork",
    "closes all descriptors",
    "exec of Python",
)
"""The others run under stress."""


def ended(command, directory, program):
    environ = {**os.environ, "PYTHONPATH": str(directory)} if "sitecustomize.py" in program.files else None
    done = subprocess.run(
        command, cwd=directory, input=program.stdin, text=True, capture_output=True, timeout=60, env=environ
    )
    return done.returncode, done.stdout, re.sub(r"at 0x\w+", "at ADDRESS", done.stderr)


def check(name, tmp_path):
    program = PROGRAMS[name]
    for path, source in program.files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(source)
    expected = ended([sys.executable, *program.words], tmp_path, program)
    report = str(tmp_path / "report")
    ours = [sys.executable, "-m", "fprobe.cli", "run", "--stat", "libz:*", "-o", report, *program.words]
    assert ended(ours, tmp_path, program) == expected


@pytest.mark.parametrize("name", QUICK)
def test_same_as_python(name, tmp_path):
    check(name, tmp_path)


def test_signals_that_are_ignored_stay_so(tmp_path):
    """As in a job that a shell runs in the background."""
    source = "import os, signal; print([n for n in range(1, 32) if signal.getsignal(n) is signal.SIG_IGN])"
    ours = [
        sys.executable,
        "-m",
        "fprobe.cli",
        "run",
        "--stat",
        "libz:deflate",
        "-o",
        str(tmp_path / "report"),
        "-c",
        source,
    ]
    commands = ([sys.executable, "-c", source], ours)
    seen = [
        subprocess.check_output(["sh", "-c", "trap '' INT QUIT HUP; exec \"$@\"", "sh", *each]) for each in commands
    ]
    assert seen[0] == seen[1]


@pytest.mark.stress
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in QUICK])
def test_all_same_as_python(name, tmp_path):
    check(name, tmp_path)
