"""`fprobe trace -p`: calls are shown while they are made."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from attaching import COMMAND, LIMIT, Target, attached, fprobe, wait_until
from sampled import in_stress


def depth(line):
    return len(re.search(r"\| ( *)", line)[1]) // 2


@pytest.mark.stress
def test_lines_arrive_before_the_end_and_are_nested(target):
    with attached("trace", "-p", target.pid, "libz:deflate*") as process:
        lines = [process.stdout.readline() for _ in range(30)]
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    assert lines[1].startswith(f"# process {target.pid}: ")
    calls = [line for line in [*lines, *rest.splitlines()] if "deflate" in line]
    # a thread's calls may have begun before
    at = next(number for number, line in enumerate(calls) if "deflateInit2_ [libz](" in line and line.endswith("{\n"))
    thread = re.search(r"\[ *(\d+)\]", calls[at])[1]
    own = [line for line in calls[at:] if f"{thread}]" in line]
    outer = depth(own[0])  # 1 where deflateInit_ calls it: Python 3.10's zlib.compress
    assert [depth(line) - outer for line in own[:4]] == [0, 1, 2, 1]
    assert "} = 0 /* deflateReset" in own[3]


def test_every_call_is_shown_once(target):
    target.ask("stop")
    with attached("trace", "-p", target.pid, "libz:deflate") as process:
        target.ask("start")
        time.sleep(0.5)
        calls = target.ask("stop")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, err
    shown = re.findall(r"deflate \[libz\]\(strm=0x\w+, flush=\d\)(?: = \d;| \{)$", out, re.MULTILINE)
    assert len(shown) == calls > 0
    assert "overwritten" not in out


@pytest.mark.stress
def test_a_reader_that_leaves_ends_it_and_the_next_can_attach(target):
    text = target.ask("text")
    process = subprocess.Popen([*COMMAND, "trace", "-p", str(target.pid), "libz:*"], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(LIMIT) in (0, -signal.SIGPIPE, 128 + signal.SIGPIPE)
    done = fprobe("trace", "-p", target.pid, "libz:deflate", "--duration", "0.2")
    assert done.returncode == 0 and "deflate [libz](strm=" in done.stdout, done.stderr
    wait_until(lambda: target.ask("text") == text)


BURST = """
import sys, zlib
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        zlib.crc32(b"x")
    print(line, end="", flush=True)
"""


@pytest.mark.parametrize("presses", [2, in_stress(1)])
def test_more_calls_than_can_be_written_do_not_keep_the_probes_there(presses):
    """Nothing reads what is written, so that the command waits; after Ctrl-C a few lines are read, and it detaches."""
    made, calls = Target("-c", BURST), 30_000
    maps = Path(f"/proc/{made.pid}/maps")
    try:
        with attached("trace", "-p", made.pid, "libz:crc32") as process:
            assert made.ask(calls) == calls
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            lines = [process.stdout.readline() for _ in range(5_000)]
            wait_until(lambda: "fprobe-run" not in maps.read_text())
            if presses == 2:
                process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, err
        shown = sum("crc32 [libz](" in line for line in [*lines, *rest.splitlines()])
        is_left_out = "# interrupted: " in rest
        if presses == 2:
            assert 5_000 <= shown < calls and is_left_out
        else:
            assert (shown, is_left_out) == (calls, False)
    finally:
        made.end()
