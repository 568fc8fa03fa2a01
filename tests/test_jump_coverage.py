"""`python -m benchmarks.jump_coverage`: how much of a library can become jumps."""

from __future__ import annotations

import re
import subprocess

import pytest
from isolation import run_module
from sampled import in_stress

from sandbox.memory.landings import MOST_PAGES


def run(*arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return run_module("benchmarks.jump_coverage", *arguments, timeout=timeout)


@pytest.mark.parametrize("target", [in_stress("libz.so.1"), "demo"])
def test_each_instruction_alone(target):
    """At least 95 % of the probeable instructions become jumps; each of the others has a rule against it"""
    done = run(target)
    assert done.returncode == 0, done.stderr
    probeable = int(re.search(r"(\d+) probeable", done.stdout)[1])
    alone = re.search(r"alone +([\d.]+) %  long (\d+), punned (\d+), absorbing (\d+); refused: (.*)", done.stdout)
    assert float(alone[1]) >= 95
    refused = sum(map(int, re.findall(r" (\d+)(?:,|$)", alone[5])))
    assert sum(map(int, alone.group(2, 3, 4))) + refused == probeable
    kernel = float(re.search(r"kernel +([\d.]+) %", done.stdout)[1])
    assert 0 < kernel < float(alone[1])


def test_a_program_of_ones_own(tmp_path):
    """Its stubs are not among the instructions that could become jumps."""
    program = tmp_path / "two.ll"
    program.write_text("define i64 @a(i64 %x) { %r = add i64 %x, 1  ret i64 %r }\ndefine i64 @b() { ret i64 70000 }\n")
    done = run(str(program))
    assert done.returncode == 0, done.stderr
    assert re.search(r"two.ll: 6 instructions, 4 probeable, 2 on ftrace locations\n", done.stdout), done.stdout
    done = run("--at-once", "right", str(program))
    assert re.search(r"jumps +[\d.]+ %  of 4; ", done.stdout), done.stdout + done.stderr


@pytest.mark.parametrize("target", ["libnosuch.so.9", "nosuch.ll"])
def test_what_is_not_there(target):
    done = run(target)
    assert done.returncode == 1
    assert target in done.stderr
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
