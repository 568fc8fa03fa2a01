"""Programs to attach to, and the commands that attach to them, for tests."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from command import Command, forked

from sandbox.remote import interpreter
from sandbox.remote.refusals import Refused

TARGET = Path(__file__).with_name("attached_target.py")
COMMAND = [sys.executable, "-m", "fprobe.cli"]
LIMIT = 60


def has_interpreter():
    """Whether there is one to bring into programs without Python."""
    try:
        return bool(interpreter.find())
    except Refused:
        return False


class Target:
    """A running program, which answers questions."""

    def __init__(self, *words, python=sys.executable):
        self.process = subprocess.Popen(
            [python, *map(str, words or (TARGET,))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.communicate()


def fprobe(*words, timeout=LIMIT):
    return forked([*map(str, words)], timeout)


@contextlib.contextmanager
def attached(*words):
    """A command that has attached; it ends by Ctrl-C inside the block, or after it."""
    process = Command(words, LIMIT)
    try:
        line = process.stderr.readline()
        assert line.startswith("fprobe: attached to "), line + process.stderr.read()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def interrupted(process):
    """What it printed after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    return out


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def rows(out, process=0):
    return {row["name"]: row for row in json.loads(out)["processes"][process]["functions"]}
