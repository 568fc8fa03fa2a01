"""`python -m kprobes.jump.coverage`: how much of a library can become jumps."""

from __future__ import annotations

import re
import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kprobes.jump.coverage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_each_instruction_alone():
    """At least 95 % of the probeable instructions become jumps; each of the others has a rule against it"""
    done = run("libz.so.1")
    assert done.returncode == 0, done.stderr
    probeable = int(re.search(r"(\d+) probeable", done.stdout)[1])
    alone = re.search(r"alone +([\d.]+) %  long (\d+), punned (\d+), absorbing (\d+); refused: (.*)", done.stdout)
    assert float(alone[1]) >= 95
    refused = sum(map(int, re.findall(r" (\d+)(?:,|$)", alone[5])))
    assert sum(map(int, alone.group(2, 3, 4))) + refused == probeable
    kernel = float(re.search(r"kernel +([\d.]+) %", done.stdout)[1])
    assert 0 < kernel < float(alone[1])


def test_a_library_that_is_not_there():
    done = run("libnosuch.so.9")
    assert done.returncode == 1
    assert "libnosuch.so.9" in done.stderr
    assert "Traceback" not in done.stderr
