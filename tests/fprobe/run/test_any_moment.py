"""One side ends, executes or forks at any moment of an attachment: the other one lives on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
from attaching import COMMAND, LIMIT, Target, fprobe, wait_until
from sampled import in_stress

SEED = int(os.environ.get("FPROBE_STRESS_SEED") or random.SystemRandom().randrange(1 << 32))
LONGEST = 0.9
"""Seconds after which an attachment is there, and most of what is interesting has happened."""
rounds = pytest.mark.parametrize("number", [1, in_stress(100)])

CHANGING = """
import os, subprocess, sys, threading, time, zlib
def work():
    while True:
        zlib.compress(b"x" * 1000)
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
word = sys.stdin.readline().strip()
if word == "exec":
    os.execv("/bin/sleep", ["sleep", "60"])
failed = 0
for number in range(200):
    if word == "fork":
        child = os.fork()
        if not child:
            zlib.compress(b"x" * 1000)
            os._exit(0)
        failed += os.waitpid(child, 0)[1] != 0
    elif word == "spawn":
        failed += subprocess.run(["/bin/true"]).returncode != 0
    time.sleep(0.005)
print(failed, flush=True)
sys.stdin.readline()
"""


def moments(number):
    """Delays, whose seed is printed."""
    print("seed", SEED)
    drawn = random.Random(SEED)
    return [drawn.uniform(0, LONGEST) for _ in range(number)]


def attaching(pid, *words):
    """A command that is about to attach."""
    command = [*COMMAND, "stat", "-p", str(pid), "libz:*", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@rounds
def test_an_attacher_that_is_killed_leaves_the_program_as_before(target, number):
    assert fprobe("stat", "-p", target.pid, "libz:*", "--duration", "0.1").returncode == 0
    state, text = target.ask("state"), target.ask("text")
    for delay in moments(number):
        process = attaching(target.pid)
        time.sleep(delay)
        process.kill()
        process.communicate()
        wait_until(lambda: target.ask("state") == state and target.ask("text") == text)
    assert fprobe("stat", "-p", target.pid, "libz:deflate", "--duration", "0.1").returncode == 0


@rounds
def test_a_terminal_that_goes_ends_it(target, number):
    state, text = target.ask("state"), target.ask("text")
    for delay in moments(number):
        process = attaching(target.pid)
        time.sleep(delay)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=LIMIT)
        wait_until(lambda: target.ask("state") == state and target.ask("text") == text)


@rounds
@pytest.mark.parametrize("what", ["kill", in_stress("exec")])
def test_a_program_that_ends_or_executes_is_reported(number, what):
    for delay in moments(number):
        made = Target("-c", CHANGING)
        try:
            process = attaching(made.pid)
            time.sleep(delay)
            if what == "kill":
                made.process.kill()
            else:
                made.process.stdin.write("exec\n")
                made.process.stdin.flush()
            try:
                out, err = process.communicate(timeout=1.5)
            except subprocess.TimeoutExpired:  # it has attached to the program that was executed
                made.process.kill()
                out, err = process.communicate(timeout=LIMIT)
        finally:
            made.end()
        assert process.returncode in (0, 2) and "Traceback" not in out + err, f"after {delay:.3f} s: {err}"
        assert process.returncode == 0 or err.count("\n") == 1, err


@pytest.mark.stress
@rounds
@pytest.mark.parametrize("what", [in_stress("fork"), "spawn"])
def test_a_program_that_starts_processes_all_the_time_loses_none(number, what):
    for delay in moments(max(number // 4, 1)):
        made = Target("-c", CHANGING)
        try:
            made.process.stdin.write(f"{what}\n")
            made.process.stdin.flush()
            time.sleep(delay)
            done = fprobe("stat", "-p", made.pid, "libz:*", "libc:malloc", "--children", "--duration", "0.4")
            assert done.returncode == 0 and "deflate [libz]" in done.stdout, done.stderr
            assert made.process.stdout.readline() == "0\n", f"after {delay:.3f} s"
        finally:
            made.end()
