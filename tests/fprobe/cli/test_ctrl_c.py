"""Ctrl-C ends with the summary, whatever the program is doing."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time

import pytest
from command import COMMAND, environment

INTERRUPTED = 130


def interrupted(programs, *words, when, presses=1):
    """Output of a run that gets SIGINT once it has printed `when` (a number: after as many seconds)."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=programs, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    limit = threading.Timer(40, process.kill)
    limit.start()
    try:
        out = wait_until(process, when)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        out += process.stdout.read()
        assert process.wait() == INTERRUPTED, (process.returncode, out[-500:])
    finally:
        limit.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    assert "Traceback" not in out
    return out


def wait_until(process, when):
    if not isinstance(when, str):
        time.sleep(when)
        return ""
    lines = [process.stdout.readline()]
    while lines[-1] and when not in lines[-1]:
        lines.append(process.stdout.readline())
    return "".join(lines)


@pytest.mark.parametrize("program", ["endless.ll", "spin.ll"])
@pytest.mark.parametrize("presses", [1, 5])
def test_trace(programs, program, presses):
    out = interrupted(programs, "trace", "*", "-p", program, when="main() {", presses=presses)
    tail = out[out.rindex("main() interrupted") :]
    assert "2 functions matched: 2 attached, 0 skipped" in tail
    assert "0 misses" in tail
    assert "not returned: main" in tail


def test_trace_json(programs):
    out = interrupted(programs, "trace", "*", "-p", "endless.ll", "--json", when='"entry"')
    objects = [json.loads(line) for line in out.splitlines()]
    assert objects[-1]["type"] == "summary"
    assert objects[-1]["interrupted"] is True
    assert objects[-1]["hits"] >= sum(item["type"] == "entry" for item in objects)


def test_stat(programs):
    out = interrupted(programs, "stat", "*", "-p", "endless.ll", when="# counting")
    assert "main() interrupted" in out


def test_stat_json(programs):
    found = json.loads(interrupted(programs, "stat", "*", "-p", "endless.ll", "--json", when=4))
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
