"""Every example of native handlers runs, and says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> str:
    """What an example prints; it must end well and say nothing on the error output."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.stress
def test_latency_by_size() -> None:
    text = run("latency_by_size.py")
    (writes,) = map(int, re.findall(r"^(\d+) writes", text))
    counts = [int(count) for count in re.findall(r"\.\. +\d+ +(\d+) \|", text)]
    assert writes == 200 and sum(counts) == writes
    assert len(re.findall(r"row \d+:", text)) >= 3


@pytest.mark.stress
def test_argument_filter() -> None:
    reads, short = map(int, re.findall(r"\d+", run("argument_filter.py")))
    assert reads > 100 and 0 < short < reads


@pytest.mark.stress
def test_calls_by_caller() -> None:
    text = run("calls_by_caller.py")
    total = int(text.split()[0])
    found = re.findall(r"^  (\w+)\+\S+ \[demo\] +calls=(\d+), copied=\d+$", text, re.MULTILINE)
    assert sum(int(calls) for _, calls in found) == total > 0 and len({caller for caller, _ in found}) >= 3


@pytest.mark.stress
def test_first_failures() -> None:
    head, *lines = run("first_failures.py").splitlines()
    assert int(head.split()[0]) >= len(lines) == 8
    assert all(re.fullmatch(r"  vfs_\w+\+0x0/\S+ \[demo\]: -E[A-Z]+, called from \S+ \[demo\]", line) for line in lines)


def test_deflate() -> None:
    """At its end the interpreter runs on in a malloc that nobody probes any more."""
    found = {int(low): int(count) for low, count in re.findall(r"(\d+) bytes and more: (\d+)", run("deflate.py"))}
    assert found[65536] >= 2 and sum(found.values()) > 10  # zlib's window and its hash chains
