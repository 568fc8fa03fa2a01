"""Ctrl-C ends with the summary, whatever the program is doing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from command import COMMAND, HAS_COMPILER, environment
from namespaces import needs_fuse
from sampled import sampled

INTERRUPTED = 130


OTHERS = [("endless.ll", 5), ("spin.ll", 5), ("endless.ll", 1)]


def interrupted(programs, *words, when, presses=1):
    """Output of a run that gets SIGINT once it has printed `when`, or where that is None, once its program runs."""
    process = subprocess.Popen(
        [*COMMAND, *words], cwd=programs, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    limit = threading.Timer(40, process.kill)
    limit.start()
    try:
        out = wait_until(process, when) if when else wait_for_program(process)
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
    assert "Traceback" not in out, out[-1500:]
    return out


def wait_for_program(process):
    """Until another thread than the first has been running for some time."""
    while process.poll() is None and not any(map(ticks, Path(f"/proc/{process.pid}/task").glob("[0-9]*"))):
        time.sleep(0.02)
    return ""


def ticks(thread):
    """Of user time, 10 ms each; none of the first thread."""
    try:
        stat = (thread / "stat").read_text()
    except OSError:  # it has just ended
        return 0
    return 0 if thread.name == thread.parts[2] else int(stat.rpartition(")")[2].split()[11])


def wait_until(process, when):
    lines = [process.stdout.readline()]
    while lines[-1] and when not in lines[-1]:
        lines.append(process.stdout.readline())
    return "".join(lines)


@pytest.mark.parametrize(
    ("program", "presses"),
    [("spin.ll", 1), *(pytest.param(*both, marks=pytest.mark.stress) for both in OTHERS)],
)
def test_trace(programs, program, presses):
    out = interrupted(programs, "trace", "*", "--program", program, when="main() {", presses=presses)
    tail = out[out.rindex("main() interrupted") :]
    assert "2 functions matched: 2 attached, 0 skipped" in tail
    assert "0 misses" in tail
    assert "not returned: main" in tail


@pytest.mark.stress
def test_trace_json(programs):
    out = interrupted(programs, "trace", "*", "--program", "spin.ll", "--json", when='"entry"')
    objects = [json.loads(line) for line in out.splitlines()]
    assert objects[-1]["type"] == "summary"
    assert objects[-1]["interrupted"] is True
    assert objects[-1]["hits"] >= sum(item["type"] == "entry" for item in objects)


@pytest.mark.stress
def test_stat(programs):
    out = interrupted(programs, "stat", "*", "--program", "endless.ll", when="# counting")
    assert "main() interrupted" in out


@pytest.mark.stress
def test_stat_json(programs):
    found = json.loads(interrupted(programs, "stat", "*", "--program", "endless.ll", "--json", when=None))
    assert found["result"] is None
    assert {row["name"]: row["hits"] > 0 for row in found["functions"]} == {"tick": True, "main": True}


SELF_INTERRUPTED = """
import os, signal, sys, threading, time
from fprobe.cli import main
from fprobe.cli.interrupting import ctrl_c
ctrl_c.install()
delay, sys.argv = float(sys.argv[1]), ["fprobe", *sys.argv[2:]]
threading.Thread(target=lambda: (time.sleep(delay), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
main()
"""
INTERRUPTED_IN_LLVMLITE = """
import os, signal, time
from fprobe.cli.interrupting import Interrupted, ctrl_c
ctrl_c.install()
llvmlites = {"__name__": "llvmlite.binding.ffi", "press": lambda: os.kill(os.getpid(), signal.SIGINT), "freed": []}
exec("def close():\\n press()\\n freed.append(1)", llvmlites)
try:
    llvmlites["close"]()
    assert ctrl_c.pressed
    time.sleep(20)
except Interrupted:
    print(llvmlites["freed"])
"""


def test_llvmlite_is_not_interrupted_where_it_would_free_a_string_twice():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_LLVMLITE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "[1]\n", done.stderr


RUNS = {
    "trace": ("trace", "*", "--program", "endless.ll"),
    "trace of IR that is compiled": ("trace", "*", "--program", "endless.ll", "--opt", "2"),
    "stat of the demo": ("stat", "*"),
    "stat": ("stat", "*", "--program", "endless.ll", "--json"),
    "trace to objects": ("trace", "*", "--program", "endless.ll", "--json", "--limit", "5"),
}
if HAS_COMPILER:
    RUNS["stat of C"] = ("stat", "*", "--program", "prog.c", "--call", "fib", "40")


@pytest.mark.parametrize("kind", sampled(RUNS, 1))
@pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.stress)])
def test_at_any_moment(programs, times, kind, tmp_path):
    """From before the first import to the end: the exit code is 130, and there is a summary."""
    random = Random(kind)
    for number, until in enumerate([0.02, 0.2, 1.0] * times if times > 1 else [0.5]):
        delay = until * random.random()
        fresh = {"FPROBE_CACHE_DIR": str(tmp_path / str(number))} if "compiled" in kind else {}
        done = subprocess.run(
            [sys.executable, "-c", SELF_INTERRUPTED, str(delay), *RUNS[kind]],
            cwd=programs, env=environment(**fresh), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        over = kind == "stat of the demo" and done.returncode == 0  # it had ended before
        assert over or done.returncode == INTERRUPTED, (delay, done.returncode, done.stderr)
        assert "Traceback" not in done.stderr + done.stdout, (delay, done.stderr)
        if done.stdout or "called" in done.stderr:
            assert has_summary(done.stdout, "--json" in RUNS[kind]), (delay, done.stdout[-500:], done.stderr)
        else:
            assert done.stderr in ("fprobe: interrupted\n", ""), (delay, done.stderr)  # the latter: outside of main()


def has_summary(out, as_json):
    if not as_json:
        return bool(re.search(r"\d hits?, \d+ misse?s?", out))
    try:
        return "functions" in json.loads(out) or json.loads(out)["interrupted"]
    except ValueError:
        last = json.loads(out.splitlines()[-1])
        return last["type"] == "summary" and last["interrupted"]


@pytest.mark.stress
def test_a_reader_that_goes_away_ends_it(programs):
    process = subprocess.Popen(
        [*COMMAND, "trace", "*", "--program", "endless.ll"], cwd=programs, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline().startswith("# tracing 2 functions")
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.stress
@needs_fuse
@pytest.mark.parametrize(
    "script", sampled(["echo ready; call main", "echo ready; call main & wait", "echo ready; sleep 100"], 1)
)
def test_a_script_of_tracefs(programs, script):
    out = interrupted(programs, "tracefs", "--program", "spin.ll", "sh", "-c", script, when="ready")
    assert out.splitlines() == ["ready", "fprobe: interrupted"]
