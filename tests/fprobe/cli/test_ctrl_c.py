"""Ctrl-C ends with the summary, whatever the program is doing."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from command import COMMAND, environment

INTERRUPTED = 130


def interrupted(programs, *words, after=1.0, presses=1):
    """Output of a run that gets SIGINT `after` seconds from its first output, and must end by itself."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=programs, env=environment(PYTHONUNBUFFERED="1"), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        time.sleep(after)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in out + err
    assert process.returncode == INTERRUPTED, (process.returncode, out[-500:], err)
    return out


@pytest.mark.parametrize("program", ["endless.ll", "spin.ll"])
@pytest.mark.parametrize("presses", [1, 5])
def test_trace(programs, program, presses):
    out = interrupted(programs, "trace", "*", "-p", program, after=2, presses=presses)
    tail = out[out.rindex("main() interrupted") :]
    assert "2 functions matched: 2 attached, 0 skipped" in tail
    assert "0 misses" in tail
    assert "not returned: main" in tail


def test_trace_json(programs):
    out = interrupted(programs, "trace", "*", "-p", "endless.ll", "--json", after=2)
    objects = [json.loads(line) for line in out.splitlines()]
    assert objects[-1]["type"] == "summary"
    assert objects[-1]["interrupted"] is True
    assert objects[-1]["hits"] >= sum(item["type"] == "entry" for item in objects) > 1000


def test_stat(programs):
    out = interrupted(programs, "stat", "*", "-p", "endless.ll", after=2)
    assert " tick\n" in out
    assert "main() interrupted" in out


def test_stat_json(programs):
    found = json.loads(interrupted(programs, "stat", "*", "-p", "endless.ll", "--json", after=2))
    assert found["result"] is None
    assert {row["name"]: row["hits"] > 0 for row in found["functions"]} == {"tick": True, "main": True}


def test_a_reader_that_goes_away_ends_it(programs):
    process = subprocess.Popen(
        [*COMMAND, "trace", "*", "-p", "endless.ll"], cwd=programs, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline().startswith("# tracing 2 functions")
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""
    process.stderr.close()
