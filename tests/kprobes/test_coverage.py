"""`python -m kprobes.jump.coverage`: how much of a library can become jumps."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kprobes.jump.landings import MOST_PAGES


def run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kprobes.jump.coverage", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


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


@pytest.mark.stress
@pytest.mark.timeout(400)
@pytest.mark.parametrize("order", ["right", "random"])
def test_all_at_once(order):
    """Most become jumps, in any order; each of the others has a rule against it; mappings stay within their bound"""
    done = run("--at-once", order, "--seed", "7", "libz.so.1", timeout=300)
    assert done.returncode == 0, done.stderr
    share, probes, rules = re.search(r"jumps +([\d.]+) %  of (\d+); refused: (.*)", done.stdout).groups()
    mappings, per = re.search(r"mappings (\d+), (\d+) per 10,000 probes", done.stdout).groups()
    assert float(share) > 85
    refused = sum(map(int, re.findall(r" (\d+)(?:,|$)", rules)))
    assert refused == pytest.approx(int(probes) * (1 - float(share) / 100), abs=int(probes) / 1000)
    assert int(mappings) < MOST_PAGES
    assert int(per) == round(int(mappings) * 10_000 / int(probes))
