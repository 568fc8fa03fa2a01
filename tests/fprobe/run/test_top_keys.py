"""The keys of `fprobe top -p` on a terminal."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys

import pytest
from attaching import COMMAND
from sampled import in_stress
from terminal import Terminal

from fprobe.run.launcher.top_view import TopView

USUAL = TopView("total", 1.0, None)


def after(*keys, view=USUAL):
    return functools.reduce(TopView.after, keys, view)


def test_letters_and_arrows_choose_the_column_and_r_reverses_it():
    assert [after(key).sort for key in "cptsa59n"] == [
        "calls", "rate", "total", "self", "average", "p50", "p99", "name",
    ]  # fmt: skip
    assert [after(key).sort for key in ("<", ">", "\x1b[D", "\x1bOC")] == ["rate", "self", "rate", "self"]
    assert after("n", ">").sort == "calls" and after("c", "<").sort == "name"
    assert after("r").is_reversed and after("r", "t").is_reversed and not after("r", "s").is_reversed


def test_a_filter_is_typed_kept_and_given_up():
    typed = after("/", *"inq", "\x7f", "F")
    assert (typed.filter, typed.is_typing, typed.is_over) == ("inF", True, False)
    assert typed.shows("inflate [libz]") and not typed.shows("deflate [libz]")
    assert after("\r", "q", view=typed) == typed._replace(is_typing=False, is_over=True)
    assert after("\r", "\x1b", view=typed) == after("\x1b", view=typed) == USUAL
    assert after("\x15", "\x1b[A", "\x01", view=typed).filter == ""


def test_other_keys_change_nothing():
    assert after("x", "\x1b[A", "\n", "\x7f") == USUAL


@pytest.mark.stress
def test_a_table_that_cannot_be_written_is_a_failure(target):
    words = [*COMMAND, "top", "-p", str(target.pid), "--stat", "libz:*flate*", "--duration", "0.2"]
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("\nfprobe: the table could not be written: No space left on device\n")


def opened(target, *options):
    words = ["top", "-p", str(target.pid), "--stat", "libz:*flate*", "-d", "0.3", *options]
    target.ask("start")
    job = Terminal(*COMMAND, *words, size=(24, 100))
    job.wait_for("deflate [libz]")
    return job


def press(job, keys, text):
    job.output = ""
    job.press(keys)
    return job.wait_for(text)


def end_of(job, target, text):
    seen = job.wait_for(text)
    job.close()
    target.ask("stop")
    assert "no echo" not in seen
    return seen


def test_the_table_obeys_keys(target):
    job = opened(target)
    assert "; h: help" in job.output and " SELF " in job.output
    assert "q quit" in press(job, b"h", "q quit")
    press(job, b"n", "by name")
    job.output = press(job, b"r", "by name, reversed").partition("reversed")[2]
    names = re.findall(r"(\w+) \[libz\]", job.wait_for("\x1b[J").partition("\x1b[J")[0])
    assert names == sorted(names, reverse=True)
    press(job, b"/initq", "filter: initq_")
    press(job, b"\x7f\r", "with 'init'")
    job.press(b"q")
    last = end_of(job, target, "ended 0").rpartition("\x1b[?1049l")[2]
    assert "by name, reversed; with 'init'" in last and "deflateInit2_ [libz]" in last and "deflate [libz]" not in last


@pytest.mark.parametrize(
    ("sends", "ends"), [(b"\x03", "ended 0"), in_stress((signal.SIGTERM, f"ended {-signal.SIGTERM}"))]
)
def test_the_terminal_is_restored_at_the_end(target, sends, ends):
    job = opened(target)
    if isinstance(sends, bytes):
        job.press(sends)
    else:
        os.kill(foreground(job), sends)
    assert "\x1b[?1049l" in end_of(job, target, ends)


def foreground(job):
    return os.tcgetpgrp(job.master)


@pytest.mark.stress
def test_the_terminal_is_restored_while_the_command_is_stopped(target):
    job = opened(target)
    press(job, b"\x1a", "stopped")
    before, _, after_stop = job.wait_for("deflate [libz]").partition("stopped")
    assert before.rstrip().endswith("\x1b[?1049l") and after_stop.lstrip().startswith("\x1b[?1049h")
    press(job, b"s", "by self")
    job.press(b"q")
    end_of(job, target, "ended 0")


@pytest.mark.stress
def test_a_dumb_terminal_has_no_keys(target):
    job = Terminal(*COMMAND, "top", "-p", str(target.pid), "--stat", "libz:deflate", "--duration", "0.3", term="dumb")
    seen = job.wait_for("ended 0")
    job.close()
    assert "\x1b" not in seen and "h: help" not in seen


@pytest.mark.stress
def test_a_command_in_the_background_leaves_the_terminal_alone(target):
    """Reading it, or changing it, would stop the command."""
    source = f"""
import os, signal, subprocess, sys
words = [*{COMMAND!r}, "top", "-p", "{target.pid}", "--stat", "libz:deflate", "--duration", "0.3"]
print("background", subprocess.run(words, preexec_fn=os.setpgrp).returncode)
"""

    job = Terminal(sys.executable, "-c", source)
    seen = job.wait_for("ended 0")
    job.close()
    assert "background 0" in seen and "no echo" not in seen
